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
