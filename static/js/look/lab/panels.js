// Charts below each other over the tokens of a text: bars side by side, or lines that go in steps.

import { grid } from "../../core-sample/grid.js";
import { fitCanvas } from "../../ui/dom.js";
import { count } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { label, LabelRow, rule, SANS, ticks } from "../shared/chart.js";

const LEFT = 56;
const RIGHT = 12;
const TOP = 22;
const GAP = 12;
const FOOT = 22;
const APART = { x: 72, y: 30 };

/** @typedef {{left: number, room: number, top: number, foot: number, width: number}} Area */

/** @type {NonNullable<Experiment["draw"]>} */
export function drawPanels(canvas, { x: column, panels }, rows) {
  const [context, width, height] = fitCanvas(canvas);
  const all = panels?.(rows) ?? [];
  if (!width || !rows.length) return;
  context.font = `${grid.small}px ${SANS}`;
  const [room, high] = [width - LEFT - RIGHT, (height - FOOT) / all.length];
  all.forEach((panel, i) => {
    const [top, foot] = [i * high + TOP, (i + 1) * high - GAP];
    drawPanel(context, panel, rows, { left: LEFT, room, top, foot, width });
  });
  const below = new LabelRow(context, height - FOOT / 2, 0, width);
  below.add(column, [[LEFT - 6, "end"]]);
  for (const n of ticks(rows.length, room, APART.x)) below.add(count(n), [[LEFT + (n / rows.length) * room, "center"]]);
}

/** @param {CanvasRenderingContext2D} context @param {LabPanel} panel @param {LabRow[]} rows @param {Area} area */
function drawPanel(context, { kind, unit, lines }, rows, area) {
  const { left, room, top, foot, width } = area;
  const values = lines.flatMap(({ column }) => rows.map((row) => Number(row[column])));
  const [most, least] = [Math.max(0, ...values), Math.min(0, ...values)];
  const span = most - least || 1;
  const y = (/** @type {number} */ value) => foot - ((value - least) / span) * (foot - top);
  for (const value of scale(most, least, foot - top)) {
    rule(context, left, y(value), room, 1, value ? "line" : "edge");
    label(context, value % 1 ? String(Number(value.toPrecision(2))) : count(value), left - 6, y(value), { align: "end" });
  }
  label(context, unit, left - 6, top - 14, { align: "end" });
  const names = new LabelRow(context, top - 14, left, width);
  let from = left;
  for (const { column, colour } of lines) {
    rule(context, from, top - 15, 14, 3, colour);
    names.add(column, [[from + 20, "start"]], { colour: "ink-2" });
    from += 36 + context.measureText(column).width;
  }
  if (kind === "bars") drawBars(context, lines, rows, area, y);
  else drawSteps(context, lines, rows, area, y);
}

/** Round numbers from `least`, at most 0, to `most`. @param {number} most @param {number} least @param {number} room */
function scale(most, least, room) {
  const span = most - least;
  const up = ticks(most, (room * most) / span, APART.y);
  const down = ticks(-least, (room * -least) / span, APART.y);
  return [...down.slice(1).map((value) => -value), ...(up.length ? up : [0])];
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {LabLine[]} lines
 * @param {LabRow[]} rows
 * @param {Area} area
 * @param {(value: number) => number} y
 */
function drawBars(context, lines, rows, { left, room }, y) {
  const each = room / rows.length;
  const wide = Math.max(0.5, (each - Math.min(2, each / 4)) / lines.length);
  rows.forEach((row, i) =>
    lines.forEach(({ column, colour }, k) => {
      if (row[column] === null) return;
      const [from, to] = [y(0), y(Number(row[column]))];
      context.fillStyle = palette[colour];
      context.fillRect(left + i * each + k * wide, Math.min(from, to), wide, Math.abs(to - from));
    }),
  );
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {LabLine[]} lines
 * @param {LabRow[]} rows
 * @param {Area} area
 * @param {(value: number) => number} y
 */
function drawSteps(context, lines, rows, { left, room }, y) {
  const each = room / rows.length;
  context.lineWidth = 1.5;
  lines.forEach(({ column, colour }, k) => {
    context.strokeStyle = palette[colour];
    context.beginPath();
    rows.forEach((row, i) => {
      if (row[column] === null) return;
      const height = y(Number(row[column])) - k; // lines that lie on each other stay visible
      context.lineTo(left + i * each, height);
      context.lineTo(left + (i + 1) * each, height);
    });
    context.stroke();
  });
}
