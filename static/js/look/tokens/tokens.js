// Tokens instrument: the prompt in tokens, the steps from a word to its tokens, and the same texts in
// several tokenizers.

import { Views } from "../shared/views.js";
import { comparison } from "./comparison.js";
import { prompt } from "./prompt.js";
import { word } from "./word.js";

/** @type {Views<Focus>} */
const views = new Views("tokens-view", [prompt, word, comparison]);

/** @type {Instrument} */
export const tokens = {
  needs: "nothing",
  setUp: (root) => views.setUp(root),
  show: (focus) => views.show(focus),
  hide: (isClosed) => views.hide(isClosed),
  table: () => views.table(),
};
