// Ribbon over the composer on a phone: the newest columns of the core sample.

import { cellValue, onScale } from "./column.js";
import { byId, fitCanvas, sizeOf } from "../ui/dom.js";
import { grid } from "./grid.js";
import { palette, shade } from "../ui/palette.js";
import { on } from "../state.js";
import { focused, view } from "../view.js";

const COLUMN = 4;
const BLANK = 24;
const PROBABILITY = 8;
/** Maximum number of bands that layers are grouped into. */
const MAX_BANDS = 10;

export function setUpRibbon() {
  on("tokens focus metric theme size hello", draw);
}

function draw() {
  const canvas = byId("ribbon");
  if (!sizeOf(canvas)[0]) return;
  const [context, width, height] = fitCanvas(canvas);
  const tokens = view.answer?.tokens ?? [];
  const from = Math.max(0, tokens.length - Math.floor((width - BLANK) / COLUMN));
  const bands = Math.min(MAX_BANDS, grid.layers);
  const band = (height - PROBABILITY) / bands;
  for (let i = from; i < tokens.length; i += 1) {
    const x = (i - from) * COLUMN;
    for (let b = 0; b < bands; b += 1) {
      const layer = Math.floor(((b + 0.5) * grid.layers) / bands);
      const at = onScale(cellValue(tokens[i].stats, { layer, part: view.parts - 1 }));
      if (at === null) continue;
      context.fillStyle = shade(at);
      context.fillRect(x, height - (b + 1) * band, COLUMN, band);
    }
    const bar = Math.exp(tokens[i].logprob) * (PROBABILITY - 2);
    context.fillStyle = palette["ink-2"];
    context.fillRect(x + 1, PROBABILITY - 2 - bar, COLUMN - 2, bar);
  }
  const index = focused() ?? -1;
  const x = (index - from) * COLUMN;
  if (index >= from && tokens.length) {
    context.strokeStyle = palette.lamp;
    context.strokeRect(x - 0.5, 0.5, COLUMN + 1, height - 1);
  }
  context.fillStyle = palette.ink;
  for (const { index: at } of view.answer?.marks ?? []) {
    if (at >= from && at < tokens.length) context.fillRect((at - from) * COLUMN, 0, 1, height);
  }
}
