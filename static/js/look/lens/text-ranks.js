// Picture of a whole text under the lens: a column for each token, a row for each layer, and how many
// tokens were on top from each layer on.

import { clamp, fitCanvas, setVars } from "../../ui/dom.js";
import { count } from "../../ui/format.js";
import { palette, shade } from "../../ui/palette.js";
import { label, rule } from "../shared/chart.js";
import { stageName, whenTop } from "./reading.js";

const LEFT = 64;
const HISTOGRAM = 132;
const HEAD = 18;
const FOOT = 4;
const LEAST_COLUMN = 3;
const MOST_COLUMN = 18;
const LEAST_ROW = 8;
const MOST_ROW = 22;
const LEAST_LABELLED = 12;

/** Width of a column in the last picture. */
let column = MOST_COLUMN;

/** Column at x, or null. @param {number} x @param {number} n */
export function columnAt(x, n) {
  const at = Math.floor((x - LEFT) / column);
  return at >= 0 && at < n ? at : null;
}

/**
 * `rows`: ranks after each stage, of the columns that were measured; `n`: of all columns; `vocab`: number of
 * ranks; `prompt`: columns of the prompt; `hot`: the focused column.
 *
 * @typedef {{
 *   rows: {position: number, ranks: number[]}[], n: number, nStages: number, vocab: number,
 *   prompt: number, hot: number,
 * }} TextRanks
 */

/** @param {HTMLCanvasElement} canvas @param {number[]} room @param {TextRanks} text */
export function drawText(canvas, [width, height], { rows, n, nStages, vocab, prompt, hot }) {
  const row = clamp(Math.floor((height - HEAD - FOOT) / nStages), LEAST_ROW, MOST_ROW);
  column = clamp((width - LEFT - HISTOGRAM) / n, LEAST_COLUMN, MOST_COLUMN);
  const wide = LEFT + n * column;
  setVars(canvas, { "--w": `${wide + HISTOGRAM}px`, "--h": `${HEAD + nStages * row + FOOT}px` });
  const [context] = fitCanvas(canvas);
  /** @param {number} stage */
  const y = (stage) => HEAD + (nStages - 1 - stage) * row;
  const every = row >= LEAST_LABELLED ? 1 : Math.ceil(LEAST_LABELLED / row);
  for (let stage = 0; stage < nStages; stage += every)
    label(context, stageName(stage), LEFT - 6, y(stage) + row / 2, { align: "end" });
  const nOnTop = new Uint32Array(nStages);
  for (const { position, ranks } of rows) {
    const x = LEFT + position * column;
    ranks.forEach((rank, stage) => {
      context.fillStyle = shade(1 - Math.log(rank + 1) / Math.log(vocab));
      context.fillRect(x, y(stage), column - 0.5, row - 0.5);
    });
    const { settled } = whenTop(ranks);
    if (settled === null) continue;
    nOnTop[settled] += 1;
    rule(context, x, y(settled) + row - 3, column - 0.5, 3, "lamp");
  }
  rule(context, LEFT + prompt * column - 1, HEAD - 6, 2, nStages * row + 6, "ink-2");
  label(context, "prompt", LEFT, 8);
  label(context, "answer", LEFT + prompt * column + 4, 8);
  if (hot >= 0) {
    context.strokeStyle = palette.ink;
    context.lineWidth = 1;
    context.strokeRect(LEFT + hot * column - 0.5, HEAD - 0.5, column, nStages * row);
  }
  drawHistogram(context, nOnTop, { x: wide + 12, y, row });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Uint32Array} nOnTop
 * @param {{x: number, y: (stage: number) => number, row: number}} place
 */
function drawHistogram(context, nOnTop, { x, y, row }) {
  label(context, "on top from here on", x, 8);
  const most = Math.max(...nOnTop, 1);
  nOnTop.forEach((n, stage) => {
    if (!n) return;
    const width = (n / most) * (HISTOGRAM - 60);
    rule(context, x, y(stage) + 1, width, row - 2, "lamp");
    if (row >= LEAST_LABELLED) label(context, count(n), x + width + 4, y(stage) + row / 2, { colour: "ink-2" });
  });
}
