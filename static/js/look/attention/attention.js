// Attention instrument: what the focused token attends to, head by head; a sentence read by a decoder and by an
// encoder; and a text that an encoder-decoder writes about another one.

import { Views } from "../shared/views.js";
import { encoderDecoder } from "./encoder-decoder.js";
import { heads } from "./heads.js";
import { masks } from "./masks.js";

/** @type {Views<TokenFocus>} */
const views = new Views("attention-view", [heads, masks, encoderDecoder]);

/** Show the heads, as if they were chosen: the tour and lessons point at them. */
export function showHeads() {
  if (views.shown !== heads) views.open(heads);
}

/** @type {Instrument} */
export const attention = {
  needs: "token",
  asks: true,
  setUp: (root) => views.setUp(root),
  show: (focus) => views.show(focus),
  hide: (isClosed) => views.hide(isClosed),
  table: () => views.table(),
};
