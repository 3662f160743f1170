// Shapes of the compare instrument.

/** What a column is asked (run.js). */
interface AskedPrompt extends Asked {
  text: string;
  mode: Mode;
  turn: ModelTurn | null;
  after: ModelTurn | null;
  aside: boolean;
}

/** Settings and interventions of a column; null: those of the page, which the first column has. */
type ColumnControls =
  | { settings: null; interventions: null }
  | { settings: Settings; interventions: InterventionStore };

/**
 * A column: its own prompt ("" for that of all), the prompt that its answer is to, the answer, and why
 * it has none, or "".
 */
type CompareColumn = ColumnControls & {
  name: string;
  prompt: string;
  asked: AskedPrompt | null;
  answer: Answer | null;
  refused: string;
};

/** The first difference of two answers; a side is null where the answer ended before it. */
interface Parting {
  index: number;
  sides: [Token | null, Token | null];
}

/** What the engine says of one side of a difference: logits and shares by id, and the draw. */
interface ComparedSide {
  logits: Map<number, number>;
  after: Map<number, number>;
  draw: number;
  greedy: boolean;
}

/** Why two answers part: in words, and the logits and shares of both tokens on both sides. */
interface Explanation {
  text: string;
  rows: { token: Token; logits: number[]; shares: number[] }[];
}
