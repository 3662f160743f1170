// Rotary position embedding: the wavelength of each pair of dimensions, in tokens.

import { el, fitCanvas, setText } from "../../ui/dom.js";
import { count, figure, plural } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { label, rule } from "../shared/chart.js";

const FOOT = 20;
const TOP = 28;
const LEFT = 58;
const RIGHT = 8;

/**
 * Wavelength of a pair relative to that without RoPE scaling.
 *
 * @param {Pick<Answers.RopeTable, "wavelength" | "unscaled">} rope
 * @param {number} i
 */
export const ropeScale = ({ wavelength, unscaled }, i) => wavelength[i] / unscaled[i];

export class Rotary {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root.appendChild(el("div", "wt-rotary"));
    this.head = this.root.appendChild(el("p", "wt-what"));
    this.canvas = this.root.appendChild(el("canvas", "wt-turns"));
    this.canvas.setAttribute("aria-hidden", "true");
  }

  /** @param {Answers.RopeTable} rope */
  draw(rope) {
    setText(this.head, describe(rope));
    const [context, width, height] = fitCanvas(this.canvas);
    if (!width || !rope.wavelength.length) return;
    const { wavelength, unscaled, context: most } = rope;
    const foot = height - FOOT;
    const ends = [...wavelength, ...unscaled, most].map(Math.log10);
    const [low, high] = [Math.floor(Math.min(...ends)), Math.ceil(Math.max(...ends))];
    /** @param {number} tokens */
    const y = (tokens) => foot - ((Math.log10(tokens) - low) / (high - low)) * (foot - TOP);
    /** @param {number} i */
    const x = (i) => LEFT + ((i + 0.5) / wavelength.length) * (width - LEFT - RIGHT);
    for (let power = low; power <= high; power += 1) {
      rule(context, LEFT, y(10 ** power), width - LEFT - RIGHT, 1);
      label(context, count(10 ** power), LEFT - 8, y(10 ** power), { align: "end" });
    }
    label(context, "tokens per turn", 0, 8);
    label(context, `pairs 0 to ${wavelength.length - 1}`, LEFT, foot + 12);
    rule(context, LEFT, y(most), width - LEFT - RIGHT, 1, "ink");
    label(context, "context", width - RIGHT, y(most) - 7, { align: "end", colour: "ink-2" });
    wavelength.forEach((tokens, i) => {
      if (unscaled[i] !== tokens) drawUnscaled(context, x(i), y(unscaled[i]), y(tokens));
      drawPair(context, x(i), y(tokens));
    });
  }
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y */
function drawPair(context, x, y) {
  context.fillStyle = palette.data;
  context.beginPath();
  context.arc(x, y, 3, 0, 7);
  context.fill();
}

/**
 * Draw the unscaled wavelength as a ring, connected to the scaled one.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} from
 * @param {number} to
 */
function drawUnscaled(context, x, from, to) {
  rule(context, x, Math.min(from, to), 1, Math.abs(to - from), "edge");
  context.strokeStyle = palette.edge;
  context.lineWidth = 1.2;
  context.beginPath();
  context.arc(x, from, 2.5, 0, 7);
  context.stroke();
}

/** @param {Answers.RopeTable} rope */
function describe(rope) {
  const { wavelength, context, theta, scaling, factor } = rope;
  if (!wavelength.length) return "This model has no rotary positions.";
  const open = wavelength.filter((tokens) => tokens > context).length;
  const scaled = rope.wavelength.filter((_, i) => ropeScale(rope, i) !== 1).length;
  const parts = [
    `${plural(wavelength.length, "pair")} of dimensions in each head, base ${count(theta)}.`,
    `${plural(open, "pair")} ${open === 1 ? "turns" : "turn"} less than once ` +
      `in the context of ${count(context)} tokens.`,
  ];
  if (scaling !== "default")
    parts.push(
      `Scaling ${scaling} × ${figure(factor)} changed ${plural(scaled, "pair")}; rings: unscaled.`,
    );
  return parts.join(" ");
}
