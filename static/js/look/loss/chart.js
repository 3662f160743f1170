// Histogram of the losses of a text, in the colours of the text.

import { fitCanvas } from "../../ui/dom.js";
import { palette, shade } from "../../ui/palette.js";
import { label, rule } from "../shared/chart.js";
import { BIN_NATS, binOf, binsOf, MAX_NATS } from "./reading.js";

const FOOT = 20;
const TOP = 18;
const EVERY_NATS = 2;

/**
 * Draw the losses of `tokens`, their `mean`, and the bin of the focused token's loss.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {ScoredToken[]} tokens
 * @param {number} mean
 * @param {number | null} looked
 */
export function drawHistogram(canvas, tokens, mean, looked) {
  const [context, width, height] = fitCanvas(canvas);
  if (!width || height < FOOT + TOP) return;
  const counts = binsOf(tokens);
  const largest = Math.max(1, ...counts);
  const base = height - FOOT;
  /** @param {number} nats */
  const x = (nats) => 1 + (nats / MAX_NATS) * (width - 2);
  counts.forEach((n, i) => {
    const [from, to] = [Math.round(x(i * BIN_NATS)), Math.round(x((i + 1) * BIN_NATS))];
    const tall = n ? Math.max(2, (n / largest) * (base - TOP)) : 0;
    context.fillStyle = shade((i + 0.5) / counts.length);
    context.fillRect(from, base - tall, to - from - 1, tall);
    context.fillRect(from, base + 1, to - from - 1, 3);
    // The palest colour is close to that of the background.
    context.strokeStyle = palette.edge;
    if (n) context.strokeRect(from + 0.5, Math.round(base - tall) + 0.5, to - from - 2, tall);
  });
  axis(context, x, base, width);
  if (looked !== null) mark(context, x, base, counts, looked, largest);
  if (Number.isFinite(mean)) meanAt(context, x(Math.min(mean, MAX_NATS)), base, mean, width);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {(nats: number) => number} x
 * @param {number} base
 * @param {number} width
 */
function axis(context, x, base, width) {
  rule(context, 0, base, width, 1, "edge");
  for (let nats = 0; nats <= MAX_NATS; nats += EVERY_NATS) {
    const end = nats === MAX_NATS;
    const align = nats === 0 ? "start" : end ? "end" : "center";
    label(context, end ? `${nats}+ nats` : String(nats), x(nats), base + 13, { align });
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {(nats: number) => number} x
 * @param {number} base
 * @param {number[]} counts
 * @param {number} loss
 * @param {number} largest
 */
function mark(context, x, base, counts, loss, largest) {
  const i = binOf(loss);
  const [from, to] = [Math.round(x(i * BIN_NATS)), Math.round(x((i + 1) * BIN_NATS))];
  const tall = Math.max(2, (counts[i] / largest) * (base - TOP));
  context.strokeStyle = palette.lamp;
  context.lineWidth = 2;
  context.strokeRect(from, base - tall, to - from - 1, tall);
  context.lineWidth = 1;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} base
 * @param {number} mean
 * @param {number} width
 */
function meanAt(context, x, base, mean, width) {
  rule(context, x, 2, 1.5, base - 2, "ink");
  const left = x > width * 0.55;
  label(context, `mean ${mean.toFixed(2)}`, x + (left ? -5 : 6), 6, {
    align: left ? "end" : "start",
    colour: "ink-2",
  });
}
