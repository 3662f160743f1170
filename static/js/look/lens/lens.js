// Logit lens: the prediction after every layer for one token, and for a whole text the layer from
// which each token was the top prediction.
//
// nostalgebraist 2020, "interpreting GPT: the logit lens".

import { Views } from "../shared/views.js";
import { tokenLens } from "./token-lens.js";
import { wholeText } from "./whole-text.js";

/** @type {Views<TokenFocus>} */
const views = new Views("lens-view", [tokenLens, wholeText]);

/** Show the lens of one token, for the tour or a lesson. */
export const showTokenLens = () => views.lend(tokenLens.name);

/** @type {Instrument} */
export const lens = {
  needs: "token",
  asks: true,
  setUp: (root) => views.setUp(root),
  show: (focus) => views.show(focus),
  hide: (isClosed) => views.hide(isClosed),
  table: () => views.table(),
};
