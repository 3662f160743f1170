// Tokens instrument: the prompt in tokens, the steps from a word to its tokens, the same texts in
// several tokenizers, vectors of texts, the neighbours of a token, and the tokens of a watermark.

import { Views } from "../shared/views.js";
import { comparison } from "./comparison.js";
import { embeddings } from "./embeddings.js";
import { neighbours } from "./neighbours.js";
import { prompt } from "./prompt.js";
import { watermark } from "./watermark.js";
import { word } from "./word.js";

/** @type {Views<Focus>} */
const views = new Views("tokens-view", [prompt, word, comparison, embeddings, neighbours, watermark]);

/** Show the prompt or the steps of a word for the tour or a lesson. @param {"prompt" | "word"} name */
export const showTokens = (name) => views.lend(name);

/** @type {Instrument} */
export const tokens = {
  needs: "nothing",
  setUp: (root) => views.setUp(root),
  show: (focus) => views.show(focus),
  hide: (isClosed) => views.hide(isClosed),
  table: () => views.table(),
};
