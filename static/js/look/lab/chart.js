// Line chart of an experiment, over the column that was varied.

import { grid } from "../../core-sample/grid.js";
import { fitCanvas } from "../../ui/dom.js";
import { count, figure } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { label, LabelRow, rule, SANS, ticks } from "../shared/chart.js";

const LEFT = 56;
/** Gap to the right of the unit above the axis. */
const GAP = 10;
const TOP = 22;
const FOOT = 34;
const RIGHT = 24;
const APART = { x: 72, y: 34 };

/** Powers of two from `low` to `high`. @param {number} low @param {number} high */
function powers(low, high) {
  const found = [];
  for (let n = 2 ** Math.ceil(Math.log2(low)); n <= high; n *= 2) found.push(n);
  return found;
}

/** Powers of ten. @param {number} low @param {number} high */
function tens(low, high) {
  const found = [];
  for (let n = 10 ** Math.ceil(Math.log10(low)); n <= high * 1.0001; n *= 10) found.push(n);
  return found;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Experiment} experiment
 * @param {LabRow[]} rows
 */
export function drawChart(canvas, { x: column, isLog, unit, lines }, rows) {
  const [context, width, height] = fitCanvas(canvas);
  if (!width || !rows.length) return;
  context.font = `${grid.small}px ${SANS}`;
  const left = Math.max(LEFT, context.measureText(unit).width + GAP);
  const xs = rows.map((row) => Number(row[column]));
  const values = lines.flatMap((line) => rows.map((row) => Number(row[line.column])));
  const x = scaleOf(isLog ? Math.min(...xs) : 0, Math.max(...xs), left + 8, width - RIGHT, isLog);
  const low = isLog ? 10 ** Math.floor(Math.log10(Math.min(...values))) : 0;
  const high = isLog ? 10 ** Math.ceil(Math.log10(Math.max(...values) * 1.0001)) : Math.max(...values) * 1.05;
  const foot = height - FOOT;
  const y = scaleOf(low, high, foot, TOP, isLog);
  const across = isLog ? powers(Math.min(...xs), Math.max(...xs)) : ticks(Math.max(...xs), width - left, APART.x);
  const up = isLog ? tens(low, high) : ticks(high, foot - TOP, APART.y);
  for (const value of up) {
    rule(context, left, y(value), width - left - RIGHT, 1);
    label(context, `${value < 10 && value % 1 ? figure(value) : count(value)}`, left - 6, y(value), { align: "end" });
  }
  const below = new LabelRow(context, foot + 12, 0, width);
  for (const value of across) {
    rule(context, x(value), foot, 1, 4, "edge");
    below.add(count(value), [[x(value), "center"]]);
  }
  label(context, column, width - RIGHT, height - 8, { align: "end" });
  label(context, unit, left - 6, 8, { align: "end" });
  const names = new LabelRow(context, 8, left, width);
  for (const line of lines) drawLine(context, line, rows, xs.map(x), y);
  let from = left + 8;
  for (const { column: name, colour } of lines) {
    rule(context, from, 7, 14, 3, colour);
    names.add(name, [[from + 20, "start"]], { colour: "ink-2" });
    from += 36 + context.measureText(name).width + 12;
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {LabLine} line
 * @param {LabRow[]} rows
 * @param {number[]} xs
 * @param {(value: number) => number} y
 */
function drawLine(context, { column, colour }, rows, xs, y) {
  context.strokeStyle = context.fillStyle = palette[colour];
  context.lineWidth = 1.25;
  context.beginPath();
  rows.forEach((row, i) => context.lineTo(xs[i], y(Number(row[column]))));
  context.stroke();
  rows.forEach((row, i) => {
    context.beginPath();
    context.arc(xs[i], y(Number(row[column])), rows.length > 20 ? 1.5 : 3, 0, 2 * Math.PI);
    context.fill();
  });
}

/**
 * @param {number} low
 * @param {number} high
 * @param {number} from
 * @param {number} to
 * @param {boolean} isLog
 */
function scaleOf(low, high, from, to, isLog) {
  const place = isLog ? Math.log : (/** @type {number} */ value) => value;
  const span = place(high) - place(low) || 1;
  return (/** @type {number} */ value) => from + ((place(value) - place(low)) / span) * (to - from);
}
