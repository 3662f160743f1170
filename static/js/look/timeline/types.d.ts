// Shapes of the timeline.

/** What was done from `from` to `to` (ms), for the token `index` of the run. */
interface Span {
  track: string;
  part: string;
  from: number;
  to: number;
  index: number | null;
}

/** Times of a token (ms), null where unknown (spans.js). */
interface StepSpans extends StepDurations {
  at: number;
  from: number;
  to: number;
  interval: number;
  passed: number;
  received: number | null;
  drawn: number | null;
}

/** Durations of the parts of a step. */
interface StepDurations {
  paced: number | null;
  encode: number;
  gpu: number | null;
  wait: number;
  read: number;
  pipe: number;
  socket: number | null;
  page: number | null;
}

type MeasuredRun = ReturnType<typeof import("./spans.js").measure>;

type ChunkKind = "system" | "user" | "call" | "result" | "answer";

/** Tokens from … end − 1 of a prompt. */
interface Chunk {
  kind: ChunkKind;
  from: number;
  end: number;
}

/**
 * A run of the conversation, in turn number `turn`: the chunks of its prompt with how many of their
 * tokens were reused from the cache, the kind of what it wrote, tokens, and times in milliseconds, null
 * while they are unknown; `toolMs`: of the tools that it called, null without any.
 */
interface ChunkedRun {
  turn: number;
  written: ChunkKind;
  prompt: (Chunk & { reused: number })[];
  nPrompt: number;
  /** Found in the KV cache, `nMoved` of them at another place. */
  nReused: number;
  nMoved: number;
  nWritten: number;
  readMs: number | null;
  writeMs: number | null;
  toolMs: number | null;
}
