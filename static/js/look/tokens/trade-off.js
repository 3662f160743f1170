// Chart of Tokens: bytes of the embedding table against the tokens of a text, for each tokenizer.

import { fitCanvas, setAttr } from "../../ui/dom.js";
import { bytes, count } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { label, rule, ticks } from "../shared/chart.js";

/** @typedef {{name: string, tokens: number, bytes: number}} Point */

const LEFT = 64;
const RIGHT = 16;
const TOP = 24;
const BOTTOM = 34;
const RADIUS = 4;

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
  label(context, "byte-level BPE with fewer merges", xOf(middle.tokens) + 8, yOf(middle.bytes) - 8);

  /** Where labels are. @type {number[]} */
  const taken = [];
  for (const [i, point] of tokenizers.entries()) {
    const [x, y] = [xOf(point.tokens), yOf(point.bytes)];
    context.beginPath();
    context.arc(x, y, RADIUS, 0, 2 * Math.PI);
    context.fillStyle = i === 0 ? palette.lamp : palette["ink-2"];
    context.fill();
    let beside = y - 8;
    while (taken.some((other) => Math.abs(other - beside) < 14)) beside += 14;
    taken.push(beside);
    const text = `${point.name}, ${count(point.tokens)}`;
    const fits = context.measureText(text).width < x - 8 - LEFT;
    label(context, text, fits ? x - 8 : x + 8, beside, {
      colour: i === 0 ? "ink" : "ink-2",
      align: fits ? "end" : "start",
    });
  }
  const said = tokenizers.map(({ name, tokens, bytes: n }) => `${name}: ${count(tokens)} tokens, ${bytes(n)}`);
  setAttr(canvas, "aria-label", `Embedding table against tokens of the texts. ${said.join("; ")}.`);
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
