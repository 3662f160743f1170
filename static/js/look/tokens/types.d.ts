// Shapes of the Tokens instrument.

/** One of the views: an instrument of its own (look/frame.js), below a choice of views. */
interface TokensView {
  name: string;
  label: string;
  setUp(root: HTMLElement): void;
  show(focus: Focus): Source;
  table(): Numbers;
}

/** A tokenizer in the comparison. `counts`: tokens of each text. */
interface ComparedTokenizer {
  name: string;
  vocabSize: number;
  counts: number[];
}
