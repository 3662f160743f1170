// Shapes of the Tokens instrument.

/** A tokenizer in the comparison. `counts`: tokens of each text. */
interface ComparedTokenizer {
  name: string;
  vocabSize: number;
  counts: number[];
}

/** Vectors projected on their two principal components; `shares`: of the variance. */
interface PrincipalPlane {
  points: [x: number, y: number][];
  shares: [first: number, second: number];
}

/** Texts and the cosines of their vectors. */
interface ComparedTexts {
  texts: string[];
  cosines: number[][];
  plane: PrincipalPlane;
  nTokens: number;
}

/** Answer of /v1/embeddings. */
interface EmbeddingsAnswer {
  data: { embedding: number[] }[];
  usage: { prompt_tokens: number };
}
