// Shapes of the engine in this browser.

/** Type of a number of a safetensors file. */
type FloatType = "F32" | "F16" | "BF16";

/** A special token as the files beside tokenizer.json have it (local/text/special-tokens.js). */
interface NamedToken {
  content: string;
  special: boolean;
  normalized: boolean;
  single_word?: boolean;
  lstrip?: boolean;
  rstrip?: boolean;
}

/** An added token as tokenizer.json has it. */
interface AddedToken extends NamedToken {
  id: number;
}

/** An added token as tokenizer_config.json has it below its id. */
type DecodedToken = Omit<NamedToken, "normalized"> & { normalized?: boolean };

/** Files of a model by name, as they were parsed. */
interface TokenizerFiles {
  "tokenizer.json"?: TokenizerFile;
  "tokenizer_config.json"?: Record<string, unknown> & { added_tokens_decoder?: Record<string, DecodedToken> };
  "special_tokens_map.json"?: Record<string, unknown>;
  "added_tokens.json"?: Record<string, number>;
}

/** `model` of a tokenizer.json, which may be of any kind. */
interface SegmentedModel {
  type?: string;
  vocab: Record<string, number> | [piece: string, score: number][];
  merges?: (string | [left: string, right: string])[];
  unk_token?: string | null;
  unk_id?: number | null;
  byte_fallback?: boolean;
  fuse_unk?: boolean;
  ignore_merges?: boolean;
  continuing_subword_prefix?: string | null;
  end_of_word_suffix?: string | null;
  max_input_chars_per_word?: number;
}

interface TokenizerFile {
  model: SegmentedModel;
  pre_tokenizer?: PreTokenizer | null;
  decoder: TokenDecoder | null;
  added_tokens?: AddedToken[];
}

/** `pre_tokenizer` of a tokenizer.json: what is read of it here. */
interface PreTokenizer {
  type: string;
  pretokenizers?: PreTokenizer[];
  replacement?: string;
  split?: boolean;
}

/** `decoder` of a tokenizer.json. */
type TokenDecoder =
  | { type: "Sequence"; decoders: TokenDecoder[] }
  | { type: "ByteLevel" | "ByteFallback" | "Fuse" }
  | { type: "WordPiece"; prefix: string; cleanup: boolean }
  | ({ type: "Metaspace"; replacement: string } & SpaceInFront)
  | { type: "Replace"; pattern: { String: string } | { Regex: string }; content: string }
  | { type: "Strip"; content: string; start: number; stop: number };

interface SpaceInFront {
  prepend_scheme?: string;
  add_prefix_space?: boolean;
}

/** `chat` of an export's manifest. */
interface ModelChat {
  bos_token: string | null;
  eos_token: string | null;
  special_tokens?: Record<string, string>;
  chat_template: string | null;
  eos_ids: number[];
}

interface EncodeOptions {
  bos?: boolean;
  specials?: boolean;
  inside?: boolean;
}

/** What texts of a request need of a tokenizer. */
interface PieceTokenizer {
  encode(text: string, options?: EncodeOptions): number[];
  piece(id: number): string;
  tokenBytes(id: number): Uint8Array;
  isSpecial(id: number): boolean;
}

/** A part of a prompt; `specials`: names of special tokens are tokens in it. */
interface PromptPart {
  text: string;
  specials: boolean;
}

/** A rendered conversation (local/text/prompts.js). */
interface RenderedPrompt {
  parts: PromptPart[];
  names: Set<string>;
  mark: string;
}

/** A message's index, its first character and the end in the rendered text. */
type MessageSpan = [message: number, first: number, end: number];

/** Settings of a run as the sampler takes them. */
type SamplerParams = Omit<Read.SamplingParams, "seed"> & { seed: bigint };

/** An event of a generation (gpu/events.py). */
type EngineEvent = ToPage.Generation["event"];

/** A plan that was loaded to a device. */
interface LoadedParts {
  device: GPUDevice;
  plan: Exported.PlanFile;
  buffers: import("./gpu/buffers.js").Buffers;
  pipelines: import("./gpu/pipelines.js").Pipelines;
  lookup: import("./gpu/plan-lookup.js").PlanLookup;
  interventions: import("./gpu/intervention-tables.js").InterventionTables;
}

/** Texts of tokens, as the engine writes them: LocalTokenizer, or what tests have in its place. */
interface TokenTexts {
  piece(id: number): string;
  decodeStream(ids: number[]): { push(id: number): string; flush(): string };
}

/** A part of the weights, in the order of their bytes. */
interface WeightPiece {
  bytes: number;
  read(): Promise<ArrayBuffer>;
}

/** What an engine says of its model: a manifest, or what is known of a model of a hub. */
interface ModelManifest {
  name: string;
  model: { dtype: string; kv_dtype: string; parameters: number };
  chat: ModelChat;
  defaults: ToPage.SamplingParams;
}

/** Files of a model: gpu/export-files.js or hub/hub-files.js. The pieces are known after `load`. */
interface ModelFiles {
  chat: ModelChat;
  profiles: string[];
  load(profile: string): Promise<{ plan: unknown; manifest: ModelManifest }>;
  pieces(): WeightPiece[];
}

/** Whether plans have interventions on the model's own parts, and adapters. */
interface Acting {
  interventions?: boolean;
  loras?: boolean;
}

/** Answer to an instrument before it is sent. */
interface InspectionAnswer {
  info: Record<string, unknown>;
  arrays: Record<string, { shape: number[]; values: Float32Array<ArrayBuffer> | Uint32Array<ArrayBuffer> }>;
}

/** Work that the engine does piece by piece between steps. */
type Pieces<T> = AsyncGenerator<void, T, void>;

/** Flags of WebGPU, which the library of types does not have. */
declare const GPUBufferUsage: Record<
  "MAP_READ" | "COPY_SRC" | "COPY_DST" | "STORAGE" | "UNIFORM" | "QUERY_RESOLVE",
  number
>;
declare const GPUMapMode: { READ: number };
declare const GPUShaderStage: { COMPUTE: number };
