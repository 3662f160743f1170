// Rank of the chosen token by layer: a line that moves left as the token becomes more likely.

import { fitCanvas } from "../../ui/dom.js";
import { count } from "../../ui/format.js";
import { grid } from "../../core-sample/grid.js";
import { palette } from "../../ui/palette.js";
import { label, rule, SANS } from "../shared/chart.js";
import { whenTop } from "./reading.js";

const PAD = 14;
/** Minimum row height for numbers beside the dots. */
const MIN_ROW = 14;
const DOT = 3.5;

/**
 * Draw the ranks. `ranks` from the embedding up; `head`, `row`: heights shared with the table;
 * `vocab`: number of ranks; `hot`: the focused stage.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {{ranks: number[], head: number, row: number, vocab: number, hot: number | null}} ranks
 */
export function drawRanks(canvas, { ranks, head, row, vocab, hot }) {
  const [context, width, height] = fitCanvas(canvas);
  if (!width) return;
  const room = width - 2 * PAD - 28;
  /** @param {number} rank */
  const x = (rank) => PAD + (Math.log(rank + 1) / Math.log(vocab)) * room;
  /** @param {number} stage */
  const y = (stage) => head + (ranks.length - 1 - stage + 0.5) * row;
  const bottom = head + ranks.length * row;
  if (hot !== null) rule(context, 0, y(hot) - row / 2, width, row, "lamp-wash");
  for (let stage = 0; stage <= ranks.length; stage += 1)
    rule(context, 0, head + stage * row, width, 1);
  let free = 0;
  for (let rank = 1; rank <= vocab; rank *= 10) {
    rule(context, x(rank - 1), head, 1, bottom - head + 3);
    const half = context.measureText(count(rank)).width / 2;
    if (height - bottom < 12 || x(rank - 1) - half < free) continue;
    label(context, count(rank), x(rank - 1), bottom + 11, { align: "center" });
    free = x(rank - 1) + half + 6;
  }
  drawLine(context, ranks, x, y);
  const { settled } = whenTop(ranks);
  context.font = `400 ${grid.small}px ${SANS}`;
  ranks.forEach((rank, stage) => {
    drawDot(context, x(rank), y(stage), rank === 0);
    if (row < MIN_ROW) return;
    const texts = [count(rank + 1)];
    if (stage === settled && stage) texts.unshift("1, on top from here");
    beside(context, texts, x(rank), y(stage), width, { top: rank === 0, hot: stage === hot });
  });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number[]} ranks
 * @param {(rank: number) => number} x
 * @param {(stage: number) => number} y
 */
function drawLine(context, ranks, x, y) {
  context.strokeStyle = palette.lamp;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.beginPath();
  ranks.forEach((rank, stage) => context.lineTo(x(rank), y(stage)));
  context.stroke();
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {boolean} top */
function drawDot(context, x, y, top) {
  context.beginPath();
  context.arc(x, y, DOT, 0, 2 * Math.PI);
  context.fillStyle = top ? palette.lamp : palette.ground;
  context.fill();
  context.stroke();
}

/**
 * Draw the rank beside its dot: the longest of the texts that fits on the right.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {string[]} texts
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {{top: boolean, hot: boolean}} options
 */
function beside(context, texts, x, y, width, { top, hot }) {
  /** @param {string} text */
  const wide = (text) => context.measureText(text).width;
  const text = texts.find((one) => x + 8 + wide(one) <= width) ?? texts[texts.length - 1];
  const left = x + 8 + wide(text) > width ? x - 8 - wide(text) : x + 8;
  rule(context, left - 2, y - 6, wide(text) + 4, 12, hot ? "lamp-wash" : "ground");
  label(context, text, left, y, { colour: top ? "lamp" : "ink-2" });
}
