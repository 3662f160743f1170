// Shapes of the loss instrument.

/** Size of the text that a token adds; null if unknown. */
interface TextSize {
  nBytes: number | null;
  nCharacters: number | null;
}

/** A token of a text before its loss is known. */
type PlainToken = ToPage.TokenText & TextSize & { eos?: boolean; bytes?: string; special?: boolean };

/** A token with its scores (reading.js); null for the first, which has no context, and where unknown. */
type ScoredToken = PlainToken & {
  loss: number | null;
  rank: number | null;
  bits: number | null;
  top: { id: number; p: number }[] | null;
};

/**
 * A reading of a text (source.js):
 *   from     position of the answer's first token; 0 for a text without a prompt
 *   texts    text by id, of tokens that are not in the text
 *   info     of the engine's answer; null while a run is active
 *   segment  the run; null for the user's text
 *   cut      number of tokens of a text that was truncated, else null
 */
interface Reading {
  tokens: ScoredToken[];
  from: number;
  texts: Record<number, string>;
  info: FrameAnswer["info"] | null;
  segment: Segment | null;
  cut: number | null;
}

/** A row of the gradient of a loss on the logits; `id` null: the rest of the tokens. */
interface GradientRow {
  id: number | null;
  p: number;
  gradient: number;
  count: number;
}
