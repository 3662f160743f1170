// Shapes of the attention instrument, which the tour uses, too.

/** A place whose share of the attention says what a head does (scores.js). */
type HeadPlace = "first" | "previous" | "copy" | "self";

/** Positions of each place, null where a token has none. */
type HeadPlaces = Record<HeadPlace, number[] | null>;

/** Scores of all heads by layer · n_heads + head; `even`: those of uniform attention. */
type HeadScores = Record<HeadPlace, Float32Array | null> & { even: Record<HeadPlace, number> };

/** A cell of the map: a head, the mean of a layer (`head` null), or of all (both null). */
interface HeadChoice {
  layer: number | null;
  head: number | null;
}

/** What a cell's colour shows. */
type AttentionMode = HeadPlace | "weights" | "entropy";

interface HeadCounts {
  nLayers: number;
  nHeads: number;
  nKvHeads: number;
}

/** Tokens of the focused run (ask.js). */
interface AttentionSequence extends Sequence, HeadCounts {
  answer: Answer;
  n: number;
}

/** Attention of the focused token (ask.js). */
interface AttentionNow extends AttentionSequence {
  places: HeadPlaces;
  scores: HeadScores;
  bits: Float32Array;
  from: FrameArray;
  to: FrameArray | null;
  info: FrameAnswer["info"];
  run: (number | null)[][] | null;
  unread: boolean;
}

/** What the instrument draws of it. */
interface AttentionShown extends AttentionNow {
  mode: AttentionMode;
  lineAt(choice: HeadChoice, line?: Float32Array): Float32Array;
}

/** Scores averaged over the tokens `from` to `to` of a run, how far they are, or why they are not there. */
type WideScores =
  | { scores: HeadScores; from: number; to: number; done?: undefined; total?: undefined; message?: undefined }
  | { done: number; total: number; scores?: undefined; message?: undefined }
  | { message: string; scores?: undefined; done?: undefined; total?: undefined };
