// Losses of a training over its steps: of each step's line, and of the lines held out.

import { grid } from "../../core-sample/grid.js";
import { fitCanvas } from "../../ui/dom.js";
import { count, figure } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { label, LabelRow, rule, SANS, ticks } from "../shared/chart.js";

const LEFT = 48;
const RIGHT = 16;
const TOP = 24;
const FOOT = 24;
const APART = { x: 64, y: 32 };

/** @param {HTMLCanvasElement} canvas @param {Answers.TrainRun | null} run */
export function drawLosses(canvas, run) {
  const [context, width, height] = fitCanvas(canvas);
  const values = [...(run?.losses ?? []), ...(run?.held_out ?? [])].map(([, loss]) => loss);
  if (!width || !run || !values.length) return;
  const most = Math.max(...values) * 1.05;
  const x = (/** @type {number} */ step) => LEFT + (step / run.steps) * (width - LEFT - RIGHT);
  const y = (/** @type {number} */ loss) => height - FOOT - (loss / most) * (height - FOOT - TOP);
  for (const loss of ticks(most, height - FOOT - TOP, APART.y)) {
    rule(context, LEFT, y(loss), width - LEFT - RIGHT, 1, loss ? "line" : "edge");
    label(context, loss % 1 ? figure(loss) : count(loss), LEFT - 6, y(loss), { align: "end" });
  }
  const below = new LabelRow(context, height - 8, 0, width);
  below.add("step", [[LEFT - 6, "end"]]);
  for (const step of ticks(run.steps, width - LEFT - RIGHT, APART.x)) if (step % 1 === 0) below.add(count(step), [[x(step), "center"]]);
  drawLine(context, run.losses.map(([step, loss]) => [x(step), y(loss)]), palette.data);
  drawLine(context, run.held_out.map(([step, loss]) => [x(step), y(loss)]), palette.lamp);
  label(context, "nats", LEFT - 6, 8, { align: "end" });
  const heldOut = run.held_out.length ? "lines held out" : "no line held out";
  context.font = `${grid.small}px ${SANS}`;
  const gap = 36 + context.measureText("line of the step").width;
  legend(context, "line of the step", LEFT, "data");
  legend(context, heldOut, LEFT + gap, "lamp");
}

/** @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {PaletteName} colour */
function legend(context, text, x, colour) {
  rule(context, x, 7, 14, 3, colour);
  label(context, text, x + 20, 8, { colour: "ink-2" });
}

/** @param {CanvasRenderingContext2D} context @param {number[][]} points @param {string} colour */
function drawLine(context, points, colour) {
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1.25;
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.stroke();
  for (const [x, y] of points) {
    context.beginPath();
    context.arc(x, y, points.length > 60 ? 1 : 2, 0, 2 * Math.PI);
    context.fill();
  }
}
