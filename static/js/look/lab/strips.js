// Chart of texts over time, a row for each slot of the batch: which text it wrote when; hatched: idle.

import { grid } from "../../core-sample/grid.js";
import { fitCanvas } from "../../ui/dom.js";
import { count } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { clipped, hatch, label, LabelRow, rule, ticks } from "../shared/chart.js";

const LEFT = 12;
const RIGHT = 24;
const TOP = 22;
const FOOT = 22;
const GAP = 22;
const APART = 72;

/** @type {NonNullable<Experiment["draw"]>} */
export function drawStrips(canvas, { x: column }, rows) {
  const [context, width, height] = fitCanvas(canvas);
  if (!width || !rows.length) return;
  const kinds = [...new Set(rows.map((row) => String(row[column])))];
  const most = Math.max(...rows.map((row) => Number(row["to, ms"])));
  const x = (/** @type {number} */ ms) => LEFT + (ms / most) * (width - LEFT - RIGHT);
  const lanes = Math.max(...rows.map((row) => Number(row.slot)));
  const foot = height - FOOT;
  const high = (foot - TOP - GAP) / (2 * lanes);
  kinds.forEach((kind, i) => {
    const top = TOP + i * (lanes * high + GAP);
    const own = rows.filter((row) => row[column] === kind);
    const end = x(Math.max(...own.map((row) => Number(row["to, ms"]))));
    label(context, kind, LEFT, top - 9, { colour: "ink-2" });
    clipped(
      context,
      () => context.rect(LEFT, top, end - LEFT, lanes * high - 2),
      () => hatch(context, LEFT, top, end - LEFT, lanes * high),
    );
    for (const row of own) drawText(context, row, x, top + (Number(row.slot) - 1) * high, high - 2);
  });
  const below = new LabelRow(context, foot + 12, 0, width);
  below.add("ms", [[width - RIGHT + 20, "end"]]);
  for (const ms of ticks(most, width - LEFT - RIGHT, APART)) {
    rule(context, x(ms), foot, 1, 4, "edge");
    below.add(count(ms), [[x(ms), "center"]]);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {LabRow} row
 * @param {(ms: number) => number} x
 * @param {number} top
 * @param {number} high
 */
function drawText(context, row, x, top, high) {
  const [from, to] = [x(Number(row["from, ms"])), x(Number(row["to, ms"]))];
  context.fillStyle = palette.ground;
  context.fillRect(from, top, to - from, high);
  context.fillStyle = palette.data;
  context.fillRect(from, top, Math.max(1, to - from - 2), high);
  if (high < grid.small || to - from < 2 * grid.small) return;
  label(context, String(row.text), from + 5, top + high / 2, { colour: "ground", weight: 600 });
}
