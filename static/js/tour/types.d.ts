// Shapes of the guided tour and of lessons.

type Walk = import("./walk.js").Walk;

/** A piece of a sentence (words.js). */
interface SentencePart {
  kind: "text" | "figure" | "word";
  text: string;
}

/** A box in CSS pixels of the window. */
interface WindowBox {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

/** What is outlined. */
type Outlined = Element | Range;

/** The token and row that a step focuses; null leaves them as they are. */
interface StepFocus {
  index: number | null;
  row: Row | null;
}

/** The parts of the page that the tour sets (stage.js). */
interface StagePlan {
  instrument: string | null;
  sheet: string | null;
  metric: MetricName;
  pinned: number | null;
  row: Row | null;
}

/** What a guide leads through: the tour, or a lesson. */
interface Route {
  /** "tour" or "lesson". */
  kind: string;
  /** Heading of the card, or "". */
  title: string;
  steps: TourStep<any>[];
  /** The prompt that it sends, by mode; if the page's mode has none, it switches to the other mode. */
  prompts: Partial<Record<Mode, string>>;
  /** Most tokens of the answer; the guide follows one of them. */
  nTokens: number;
  /** Tokens per second; null: at full speed. */
  pace: number | null;
  /** Does it need its own prompt, in a new conversation? Otherwise an answer on the page will do. */
  needsOwnRun: boolean;
}

/** A question to the reader, and the number that was measured. */
interface Exercise {
  /** What the number is, as a label: "tokens". */
  label: string;
  measured: number;
  /** Largest relative error of an answer that is right: the page shows few digits. */
  tolerance: number;
  /** The measured number with its unit, as the page writes it. */
  written: string;
  /** Where the number can be seen. */
  hint: string;
}

/** A step of the tour (tour.js) or of a lesson. */
interface TourStep<Found = undefined> {
  title: string;
  open: string | null;
  sheet?: string;
  follows?: boolean;
  metric?: MetricName;
  find?(walk: Walk): Found | Promise<Found>;
  at?(walk: Walk, found: Found): StepFocus;
  enter?(walk: Walk, found: Found): (() => void) | null | undefined | void;
  text(walk: Walk, found: Found): SentencePart[];
  exercise?(walk: Walk, found: Found): Exercise | null;
  marks(walk: Walk, found: Found): Outlined[][];
}
