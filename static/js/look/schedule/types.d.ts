// Shapes of the scheduler instrument (steps.js).

/** What a run had in a step. */
type StepKind = "prefill" | "decode" | "waiting" | "preempted";

interface EngineStep {
  number: number;
  ms: number;
  parts: { run: number; kind: StepKind; n: number; accepted: number }[];
}

/** A row of the picture: a run of this page, or those of all others. */
interface StepRow {
  name: string;
  isOther: boolean;
  runs: Set<number>;
}

type StepParts = ReturnType<typeof import("./steps.js").partsOf>;
