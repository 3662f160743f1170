// Shapes of the lab.

/** A measured row: numbers by the name of its column; text where it is not one. */
type LabRow = Record<string, number | string | null>;

/** What an experiment is given: a way to run prompts, and where its rows go. */
interface Bench {
  hello: ToPage.Hello;
  /** Token ids of a prompt of `n` tokens that no cache holds. */
  prompt(n: number): number[];
  /** Write `nTokens` greedily after `ids`. Rejects with {code, message}, or if the lab was stopped. */
  run(ids: number[], nTokens: number): Promise<LabRun>;
  /** Ask the engine a question. Rejects like `run`. */
  ask(question: Question): Promise<FrameAnswer>;
  /** The first `n` tokens of the last answer with its prompt, or without one of a text of the lab's own. */
  text(n: number): Promise<LabText>;
  add(row: LabRow): void;
  /** Show these rows instead of those so far. */
  show(rows: LabRow[]): void;
}

/** A text, and the interventions under which its tokens were computed. */
interface LabText {
  tokens: {id: number, text: string}[];
  spans: Pick<FromPage.Losses, "reached">;
}

/** A finished run. `firstAt`, `lastAt`: when its first and last token came to the page (ms). */
interface LabRun {
  answer: Answer;
  segment: Segment;
  timings: ToPage.Timings;
  ids: number[];
  firstAt: number;
  lastAt: number;
}

/** A line of the chart: the name of its column, which has its values, and its colour. */
interface LabLine {
  column: string;
  colour: "data" | "lamp" | "ink-2";
}

/** A chart below others: bars side by side for each row, or lines that go up and down in steps. */
interface LabPanel {
  kind: "bars" | "steps";
  unit: string;
  lines: LabLine[];
}

/** `tab`: its name among the others. */
interface Experiment {
  name: string;
  tab: string;
  title: string;
  what: string;
  /** Without them, those of its rows. */
  columns?: Column[];
  x: string;
  /** Both axes logarithmic. */
  isLog: boolean;
  unit: string;
  lines: LabLine[];
  /** Draws the rows; without it they are lines, or numbers alone if there are no lines. */
  draw?(canvas: HTMLCanvasElement, experiment: Experiment, rows: LabRow[]): void;
  panels?(rows: LabRow[]): LabPanel[];
  /** Where its numbers come from, if not from runs. */
  source?: string;
  run(bench: Bench): Promise<void>;
  /** What the rows show, in a sentence; "" while there are too few. */
  says(rows: LabRow[]): string;
}
