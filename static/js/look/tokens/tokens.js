// Tokens instrument: the prompt in tokens, the steps from a word to its tokens, the same texts in
// several tokenizers, and vectors of texts.

import { Views } from "../shared/views.js";
import { comparison } from "./comparison.js";
import { embeddings } from "./embeddings.js";
import { prompt } from "./prompt.js";
import { word } from "./word.js";

/** @type {Views<Focus>} */
const views = new Views("tokens-view", [prompt, word, comparison, embeddings]);

/** @type {Instrument} */
export const tokens = {
  needs: "nothing",
  setUp: (root) => views.setUp(root),
  show: (focus) => views.show(focus),
  hide: (isClosed) => views.hide(isClosed),
  table: () => views.table(),
};
