// Chart of Tokens: bytes of the embedding table against the tokens of a text, for each tokenizer.

import { fitCanvas, setAttr } from "../../ui/dom.js";
import { bytes, count } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { label, labelWidth, rule, ticks } from "../shared/chart.js";

/** @typedef {{name: string, tokens: number, bytes: number}} Point */

const LEFT = 64;
const RIGHT = 16;
const TOP = 24;
const BOTTOM = 34;
const RADIUS = 4;
const CURVE = "byte-level BPE with fewer merges";
/** Below this width the names of tokenizers have no room left of them. */
const NARROW = 480;
const LINE_HEIGHT = 14;
/** Distance of a label from its point, and of the labels of a cluster from its points. */
const [BESIDE, APART] = [8, 24];
/** Points nearer than this, and less than a line above each other, are a cluster. */
const CLUSTER = 140;

/**
 * `curve`: one tokenizer with fewer and fewer merges.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {Point[]} tokenizers
 * @param {Omit<Point, "name">[]} curve
 */
export function drawTradeOff(canvas, tokenizers, curve) {
  const [context, width, height] = fitCanvas(canvas);
  const every = [...tokenizers, ...curve];
  const mostTokens = Math.max(...every.map(({ tokens }) => tokens));
  const sizes = every.map((point) => point.bytes);
  const [low, high] = [Math.min(...sizes) / 1.5, Math.max(...sizes) * 1.5].map(Math.log10);
  const right = width - LEFT - RIGHT;
  const tall = height - TOP - BOTTOM;
  /** @param {number} tokens */
  const xOf = (tokens) => LEFT + (tokens / mostTokens) * right;
  /** @param {number} n */
  const yOf = (n) => TOP + tall * (1 - (Math.log10(n) - low) / (high - low));

  label(context, "bytes of the embedding table", 0, 8);
  label(context, "tokens of the six texts", width - RIGHT, height - 8, { align: "end" });
  for (const tick of ticks(mostTokens, right, 64)) {
    rule(context, xOf(tick), TOP, 1, tall);
    label(context, count(tick), xOf(tick), height - BOTTOM + 10, { align: "center" });
  }
  for (const tick of sizeTicks(low, high, tall)) {
    rule(context, LEFT, yOf(tick), right, 1);
    label(context, bytes(tick), LEFT - 6, yOf(tick), { align: "end" });
  }

  context.beginPath();
  for (const point of curve) context.lineTo(xOf(point.tokens), yOf(point.bytes));
  context.strokeStyle = palette["ink-3"];
  context.lineWidth = 1.5;
  context.stroke();
  const middle = curve[Math.floor(curve.length / 6)];
  if (width < NARROW) label(context, `curve: ${CURVE}`, LEFT + 8, TOP + tall - 8); // names are beside it
  else label(context, CURVE, xOf(middle.tokens) + 8, yOf(middle.bytes) - 8);

  const dots = tokenizers.map(({ name, tokens, bytes: n }, i) => ({
    text: `${name}, ${count(tokens)}`,
    isOwn: i === 0,
    x: xOf(tokens),
    y: yOf(n),
  }));
  for (const cluster of clustersOf(dots)) drawNames(context, cluster);
  for (const { x, y, isOwn } of dots) {
    context.beginPath();
    context.arc(x, y, RADIUS, 0, 2 * Math.PI);
    context.fillStyle = isOwn ? palette.lamp : palette["ink-2"];
    context.fill();
  }
  const said = tokenizers.map(({ name, tokens, bytes: n }) => `${name}: ${count(tokens)} tokens, ${bytes(n)}`);
  setAttr(canvas, "aria-label", `Embedding table against tokens of the texts. ${said.join("; ")}.`);
}

/** @typedef {{text: string, isOwn: boolean, x: number, y: number}} Dot */

/** Return the points in groups whose labels would lie on each other, each from left to right. @param {Dot[]} dots */
function clustersOf(dots) {
  /** @type {Dot[][]} */
  const clusters = [];
  for (const dot of dots.toSorted((a, b) => a.x - b.x)) {
    const isNear = (/** @type {Dot} */ other) =>
      dot.x - other.x < CLUSTER && Math.abs(dot.y - other.y) < LINE_HEIGHT;
    const near = clusters.find((cluster) => cluster.some(isNear));
    if (near) near.push(dot);
    else clusters.push([dot]);
  }
  return clusters;
}

/**
 * Write the names of a cluster one below the other beside it, each with a line to its point.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Dot[]} cluster
 */
function drawNames(context, cluster) {
  const widest = Math.max(...cluster.map(({ text }) => labelWidth(context, text)));
  const apart = cluster.length > 1 ? APART : BESIDE;
  const isLeft = widest + apart < cluster[0].x - LEFT;
  const side = isLeft ? -1 : 1;
  // The nearest point has the first line, so that no two lines cross.
  const ordered = isLeft ? cluster : cluster.toReversed();
  const edge = ordered[0].x + side * apart;
  ordered.forEach(({ text, isOwn, x, y }, i) => {
    const line = ordered[0].y + (cluster.length > 1 ? i * LINE_HEIGHT : -BESIDE);
    label(context, text, edge, line, { colour: isOwn ? "ink" : "ink-2", align: isLeft ? "end" : "start" });
    if (cluster.length === 1) return;
    context.beginPath();
    context.moveTo(edge - side * 3, line);
    context.lineTo(x, y);
    context.strokeStyle = palette.edge;
    context.lineWidth = 1;
    context.stroke();
  });
}

/**
 * Return 1, 2 or 5 times powers of ten between 10^`low` and 10^`high`, at least 16 px apart on `tall` px.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} tall
 */
function sizeTicks(low, high, tall) {
  const factors = (tall / (high - low)) * Math.log10(2) > 16 ? [1, 2, 5] : [1];
  /** @type {number[]} */
  const found = [];
  for (let power = Math.floor(low); power <= high; power += 1)
    found.push(...factors.map((factor) => factor * 10 ** power));
  return found.filter((tick) => Math.log10(tick) >= low && Math.log10(tick) <= high);
}
