// The rank of the chosen token through the layers: a line that goes left as it gets likelier.

import { fitCanvas } from "../dom.js";
import { count } from "../format.js";
import { grid } from "../grid.js";
import { palette } from "../palette.js";
import { label, rule, SANS } from "./chart.js";
import { whenTop } from "./lensreading.js";

const PAD = 14;
/** Numbers beside the dots need rows this high. */
const LEAST_ROW = 14;
const DOT = 3.5;

/**
 * `ranks` from the embedding up; `head`, `row`, `foot`: heights that the table beside it has;
 * `vocab`: how many ranks there are; `hot`: the stage that is looked at.
 */
export function drawRanks(canvas, { ranks, head, row, vocab, hot }) {
  const [context, width, height] = fitCanvas(canvas);
  if (!width) return;
  const room = width - 2 * PAD - 28;
  const x = (rank) => PAD + (Math.log(rank + 1) / Math.log(vocab)) * room;
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
    if (row < LEAST_ROW) return;
    const texts = [count(rank + 1)];
    if (stage === settled && stage) texts.unshift("1, top from here on");
    beside(context, texts, x(rank), y(stage), width, { top: rank === 0, hot: stage === hot });
  });
}

function drawLine(context, ranks, x, y) {
  context.strokeStyle = palette.lamp;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.beginPath();
  ranks.forEach((rank, stage) => context.lineTo(x(rank), y(stage)));
  context.stroke();
}

function drawDot(context, x, y, top) {
  context.beginPath();
  context.arc(x, y, DOT, 0, 2 * Math.PI);
  context.fillStyle = top ? palette.lamp : palette.ground;
  context.fill();
  context.stroke();
}

/** The rank beside its dot, over the line: the longest of the texts that has room at the right. */
function beside(context, texts, x, y, width, { top, hot }) {
  const wide = (text) => context.measureText(text).width;
  const text = texts.find((one) => x + 8 + wide(one) <= width) ?? texts.at(-1);
  const left = x + 8 + wide(text) > width ? x - 8 - wide(text) : x + 8;
  rule(context, left - 2, y - 6, wide(text) + 4, 12, hot ? "lamp-wash" : "ground");
  label(context, text, left, y, { colour: top ? "lamp" : "ink-2" });
}
