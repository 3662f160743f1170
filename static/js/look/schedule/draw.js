// Picture of the steps: one column per step, one row per run of this page and one for all others.

import { clamp, fitCanvas } from "../../ui/dom.js";
import { count } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { hatch, label, rule } from "../shared/chart.js";
import { partsOf } from "./steps.js";

const TIME = 34;
const ROW = 30;
const RULER = 20;
const GAP = 6;
const RIGHT = 24;
export const PITCH = 9;
const BAR = PITCH - 2;
/** Height of one token row or draft (px). */
const UNIT = 4;
const MAX_UNITS = 6;
/** A prompt chunk of this many rows is as high as its row. */
const FULL_CHUNK = 128;

/** Return the height that the rows need. @param {number} nRows */
export const heightOf = (nRows) => TIME + nRows * ROW + RULER;

/**
 * Return {left, first, n}: where the columns begin, and which steps fit, the newest last.
 *
 * @param {number} width
 * @param {number} left
 * @param {number} nSteps
 */
export function layOut(width, left, nSteps) {
  const n = Math.max(0, Math.floor((width - left - RIGHT) / PITCH));
  return { left, n, first: Math.max(0, nSteps - n) };
}

/**
 * Draw `steps` with `rows` (steps.js); `focus`: index of the focused step, or null.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {{steps: EngineStep[], rows: StepRow[], focus: number | null, left: number}} picture
 */
export function drawSteps(canvas, { steps, rows, focus, left }) {
  const [context, width] = fitCanvas(canvas);
  if (!width) return;
  const place = layOut(width, left, steps.length);
  const shown = steps.slice(place.first);
  const longest = Math.max(...shown.map(({ ms }) => ms), 1e-3);
  drawNames(context, rows, width, left);
  shown.forEach((step, i) => {
    const x = left + i * PITCH;
    const high = Math.max(1, (step.ms / longest) * (TIME - GAP - 2));
    rule(context, x, TIME - GAP - high, BAR, high, "ink-2");
    rows.forEach((row, r) => drawPart(context, x, TIME + (r + 1) * ROW, partsOf(step, row)));
    if (step.number % 10 === 0) drawNumber(context, x, heightOf(rows.length), step.number);
  });
  if (focus === null || focus < place.first) return;
  const x = left + (focus - place.first) * PITCH;
  for (const at of [x - 1.5, x + BAR + 0.5])
    rule(context, at, 0, 1.5, heightOf(rows.length) - RULER + 4, "lamp");
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {StepRow[]} rows
 * @param {number} width
 * @param {number} left
 */
function drawNames(context, rows, width, left) {
  /** @type {LabelStyle} */
  const style = { align: "end" };
  label(context, "time", left - 10, TIME - GAP - 8, style);
  rule(context, left, TIME - GAP, width - left - RIGHT, 1);
  rows.forEach(({ name, isOther }, r) => {
    const y = TIME + (r + 1) * ROW;
    label(context, name, left - 10, y - ROW / 2, { ...style, colour: isOther ? "ink-3" : "ink-2" });
    rule(context, left, y, width - left - RIGHT, 1);
  });
}

/**
 * A prompt chunk is one bar; token rows and drafts are stacked; a run that waits is hatched.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} foot
 * @param {StepParts} parts
 */
function drawPart(context, x, foot, { prefill, decode, drafts, accepted, waiting, preempted }) {
  if (waiting || preempted) {
    context.save();
    context.beginPath();
    context.rect(x, foot - 9, PITCH, 8);
    context.clip();
    hatch(context, x - 8, foot - 9, PITCH + 16, 8);
    context.restore();
    if (preempted) rule(context, x, foot - 10, PITCH, 2, "bad");
  }
  let y = foot;
  if (prefill) {
    const share = Math.log2(1 + prefill) / Math.log2(1 + FULL_CHUNK);
    const high = clamp(share, 0.12, 1) * (ROW - GAP);
    rule(context, x, y - high, BAR, high, "ink");
    y -= high + 1;
  }
  const units = Math.min(MAX_UNITS, decode + drafts);
  for (let i = 0; i < units; i += 1) {
    y -= UNIT;
    if (i < decode) rule(context, x, y + 1, BAR, UNIT - 1, "data");
    else if (i < decode + accepted) rule(context, x, y + 1, BAR, UNIT - 1, "good");
    else drawRejected(context, x, y);
  }
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y */
function drawRejected(context, x, y) {
  context.strokeStyle = palette.bad;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 1.5, BAR - 1, UNIT - 2);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} height
 * @param {number} number
 */
function drawNumber(context, x, height, number) {
  rule(context, x + BAR / 2, height - RULER + 2, 1, 4, "edge");
  label(context, count(number), x + BAR / 2, height - RULER / 2 + 3, { align: "center" });
}
