// Shapes that many rooms of the page share. ToPage, FromPage and ReplayFile are generated
// (tests/js/schema_types.py); Answer and Segment are classes of turns/answer.js.

type Answer = import("./turns/answer.js").Answer;
type Segment = import("./turns/answer.js").Segment;
type Branch = import("./turns/branch.js").Branch;
type Left = import("./conversations/left.js").Left;
type LeftMark = import("./conversations/left.js").LeftMark;
type Archive = import("./turns/archived-runs.js").Archive;
type Recording = import("./replay/playback.js").Recording;

type Mode = "chat" | "completion";

/** Values of the sliders and number boxes, by their names (settings/sampling-settings.js). */
type NumberSettings = Omit<
  ToPage.SamplingParams,
  "seed" | "stop" | "ignore_eos" | "logit_bias" | "first_index"
>;
/** Sampling settings of the page. A seed is a string of digits: it has 64 bits. */
type Settings = NumberSettings & { seed: string; stop: string[] };

/** What a server says of one of its sampling settings (app/http/page_data.py). */
interface SamplingSetting {
  name: keyof NumberSettings;
  label: string;
  help: string;
  integer: boolean;
  min: number;
  max: number;
  initial: number;
  live: boolean;
  stage: "penalty" | "temperature" | "filter" | "watermark" | null;
  neutral: number | null;
  off: { value: number; words: string } | null;
  slider: { min: number; max: number; step: number } | null;
}

/** What a server says about its sampling settings (app/http/page_data.py). */
interface SamplingData {
  settings: SamplingSetting[];
  meanings: Record<string, string>;
  max_seed: string;
  max_first_index: number;
  max_stop_strings: number;
  max_stop_chars: number;
  max_logit_biases: number;
  max_bias: number;
  greedy_below: number;
}

/** Limits on requests (app/http/page_data.py). */
interface RequestLimits {
  interventions: {
    factor: [number, number];
    strength: [number, number];
    steers: number;
    patches: number;
    text_tokens: number;
    text_chars: number;
  };
  files: { most: number; name_chars: number };
  pace: { rate: [number, number]; steps: number };
  questions: {
    at_once: number;
    top: number;
    answer_bytes: number;
    repeat: number;
    beam_width: number;
    beam_depth: number;
    length_penalty: number;
  };
  session: {
    queue: number;
    update_seconds: number;
    message_bytes: number;
    max_message_bytes: number;
  };
}

/** A JSON schema with the keywords that msgspec emits. */
interface JsonSchema {
  type?: string;
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
  anyOf?: JsonSchema[];
  enum?: (string | number)[];
  minimum?: number;
  maximum?: number;
  maxLength?: number;
  pattern?: string;
  description?: string;
  minItems?: number;
  maxItems?: number;
  items?: JsonSchema;
  properties?: Record<string, JsonSchema>;
  additionalProperties?: JsonSchema;
  required?: string[];
  default?: unknown;
  discriminator?: { propertyName: string; mapping: Record<string, string> };
}

/** What is wrong, as the server says it; `inTurns`: its message stays in the conversation. */
interface Problem {
  code: string;
  message: string;
  param?: string;
  inTurns?: boolean;
}

/** When an event passed the server, came to the page and was drawn (ms). */
interface Times {
  passedAt?: number;
  receivedAt?: number;
  drawnAt?: number;
}

/** Statistics of a token; `summary` once they are means of several heads or tokens. */
type Stats = ToPage.TokenStats & { summary?: { heads: number; tokens: number } };

/** A `token` event with its place in the answer. */
type Token = Omit<ToPage.Token, "logprob" | "stats" | "times"> &
  Times & {
    logprob: number;
    stats: Stats | null;
    times: ToPage.StepTimes;
    segment: Segment;
    place: number;
    number: number;
    put?: boolean;
    /** Was it seen in a pause before it was written? */
    previewed?: boolean;
    prompt?: undefined;
  };

/** A token of the prompt; `prompt` is its number from 1. */
type PromptToken = ToPage.TokenText & {
  prompt: number;
  reused: boolean;
  moved: ToPage.MovedChunk | null;
  stats: Stats | null;
  segment?: undefined;
  eos?: undefined;
  candidates?: undefined;
};

type RunEvent = ToPage.Generation["event"] & Times;

/** The person's turn: a message with the files that its text begins with. */
interface UserTurn {
  role: "user";
  mode: Mode;
  text: string;
  files?: ReplayFile.AttachedFile[];
  given?: undefined;
  answers?: undefined;
  shown?: undefined;
  summary?: undefined;
  tool_use?: undefined;
}

/** The model's turn: the versions of its answer, and the number of the one that is shown. */
interface ModelTurn {
  role: "model";
  mode: Mode;
  given: string;
  answers: Answer[];
  shown: number;
  summary?: ReplayFile.Summary;
  tool_use?: ReplayFile.ToolUse;
  text?: undefined;
  files?: undefined;
}

type Turn = UserTurn | ModelTurn;

/** Messages, a prompt or ids: what a request asks about. */
type Asked = Pick<FromPage.Generate, "messages" | "prompt" | "continue_final" | "tools">;

/** Changes of one setting: by numbers or interventions, or in `words`. */
interface Change {
  name: string;
  from?: any;
  to?: any;
  words?: string;
}

interface Mark {
  segment: Segment;
  index: number;
  changes: Change[];
  shown: Change[];
}

/** A row of the core sample. */
interface Row {
  layer: number;
  part: number;
}

/** Interventions of the page (interventions/intervention-wire.js). */
interface Setting {
  factors: Record<string, number>;
  steer: Array<FromPage.Steer & Keyed>;
  patch: Array<FromPage.Patch & Keyed & { here: string; there: string; at?: number | null }>;
  loras: Record<string, number>;
}

interface Keyed {
  key: string;
  muted: boolean;
}

interface InterventionStore {
  setting: Setting;
  past: InterventionStep[];
  future: Setting[];
}

interface InterventionStep {
  setting: Setting;
  gesture: unknown;
}

/** A conversation besides its turns; see `conversation` of state.js. */
interface Conversation {
  id: string | null;
  title: string;
  system: string;
  created: number;
  rev: number;
  writer: string;
  own: boolean;
  branchedFrom: ReplayFile.BranchOrigin | null;
}

type State = typeof import("./state.js").state;
type View = typeof import("./view.js").view;
type MetricName = keyof typeof import("./turns/metrics.js").METRICS;

/** What answers must follow; `kind` "": nothing. A choice has one text a line. */
interface AnswerFormat {
  kind: "" | "json_schema" | "choice" | "regex";
  text: string;
}

/** A tool of the person's own, a program that answers by HTTP (tools/own-tool.js). */
interface OwnTool {
  name: string;
  description: string;
  parameters: object;
  url: string;
}

/**
 * Tools of the page: names of those that are `on`, the person's `own`, the `texts` that are searched;
 * `auto`: calls run by themselves; `must`: the answer to a message must call one; `rounds`: most
 * answers with calls to one message.
 */
interface ToolSettings {
  on: string[];
  own: OwnTool[];
  texts: { name: string; text: string }[];
  auto: boolean;
  must: boolean;
  rounds: number;
}

/** What becomes of a chat that is too long (chat/truncation.js). */
type Truncation = "disabled" | "auto" | "summarize" | "slide";

/** The last `status` message; "connecting" before the first. */
type EngineStatus = Pick<ToPage.Status, "message" | "progress"> & {
  state: ToPage.Status["state"] | "connecting";
  retry_seconds?: number | null;
};

/** Why conversations are not kept, and whether the notice was dismissed. */
interface Unkept {
  code: string;
  message: string;
  dismissed: boolean;
}

/** The page's own controls while they are bound to `target` (settings/bound-controls.js). */
interface OwnControls {
  settings: Settings;
  interventions: InterventionStore;
  target: string;
}

/** What a replay suspends of the state (replay/replay.js). */
interface Suspended {
  turns: Turn[];
  active: Answer | null;
  problem: Problem | null;
  mode: Mode;
  settings: Settings;
  capture: boolean;
  interventions: InterventionStore;
  hello: ToPage.Hello | null;
  counted: { tokens: number } | null;
  compared?: Answer | null;
  scales?: import("./turns/metrics.js").Scales;
  view?: Pick<View, "answer" | "pinned" | "row">;
}

type Rerun = import("./replay/rerun.js").ReplayRerun;

interface OpenReplay {
  playback: import("./replay/playback.js").Playback;
  name: string;
  address: string;
  suspended: Suspended;
  rerun: Rerun | null;
}

/** Where a model runs in this browser: the address of an export, or a model of a hub (net/connection.js). */
interface PlaceHere {
  base?: string;
  hub?: HubModel;
  dtype?: string;
  name?: string;
}

/** A model of a hub, as the worker loads it (local/hub/hub-files.js). */
interface HubModel {
  hub: string;
  name: string;
  dtype: string;
  plans: string;
}

/** An answer to an instrument, whose arrays came as a binary frame (net/frames.js). */
interface FrameAnswer {
  type: "answer";
  request: number;
  kind: string;
  info: Record<string, any>;
  arrays: Record<string, { shape: number[]; values: Float32Array | Uint32Array }>;
}

type OnMessage = (message: ToPage.Any | FrameAnswer) => void;
type OnConnection = (connection: State["connection"], retryAt: number, message?: string) => void;

/** Settings of a request; its seed is a string of digits until it is encoded (net/socket.js). */
type RequestParams = Omit<FromPage.SamplingParams, "seed"> & { seed?: string | number | null };

/** What a segment was asked with; of an edited text, what it would answer. */
type RunRequest = Omit<FromPage.Generate, "type" | "id" | "params" | "reach"> & {
  type?: "generate";
  id?: string;
  params: RequestParams;
  reach?: FromPage.Interventions;
};

type PageMessage = Exclude<FromPage.Any, FromPage.Generate> | RunRequest;

/** A question of an instrument (gpu/inspection/requests.py). */
type Question = Exclude<FromPage.Inspect["question"], FromPage.Waterfall> | WaterfallQuestion;
type WaterfallQuestion = Omit<FromPage.Waterfall, "params"> & { params: RequestParams };

/** What may be tokenized or counted. */
type Countable = Omit<FromPage.Tokenize, "type" | "request">;

/** Settings by name; `reach`: interventions on the wire. */
type NamedSettings = { [name: string]: any; capture?: boolean; reach?: FromPage.Interventions };

/** A conversation that this browser keeps, without its file (conversations/database.js). */
interface Entry {
  id: string;
  rev: number;
  writer: string;
  title: string;
  heading: string;
  system: string;
  created: number;
  updated: number;
  branchedFrom: ReplayFile.BranchOrigin | null;
  model: string;
  text: string;
  runs: string[];
  nTokens: number;
  nBytes: number;
}

/** A conversation with its turns and what it was written with. */
interface Whole {
  turns: Turn[];
  conversation?: Conversation;
  hello: ToPage.Hello | null;
}

/** A file that is attached to a message: its name, and its block of the prompt. */
interface AttachedText {
  name: string;
  block: string;
  tokens?: number | null;
}

/** Settings that replace those of the page in one run. */
type Overrides = Partial<Omit<Settings, "seed">> & { seed?: string; first_index?: number };

/** What a continued text ran with: its spans, and the position from which the new run computes. */
interface Before {
  ran: FromPage.InterventionSpan[];
  from: number;
  last: number;
}
