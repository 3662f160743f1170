// Shapes of the guided tour.

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

/** A step of the tour (steps.js). */
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
  marks(walk: Walk, found: Found): Outlined[][];
}
