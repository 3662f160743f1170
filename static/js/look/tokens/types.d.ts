// Shapes of the Tokens instrument.

/** A tokenizer in the comparison. `counts`: tokens of each text. */
interface ComparedTokenizer {
  name: string;
  vocabSize: number;
  counts: number[];
}
