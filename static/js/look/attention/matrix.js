// Attention of a text as a matrix: a row for each token that attends, a column for each that is attended to.

import { clamp, el, fitCanvas, setVars } from "../../ui/dom.js";
import { tokenLabel } from "../../ui/format.js";
import { palette, shade } from "../../ui/palette.js";
import { clipped, hatch, label } from "../shared/chart.js";
import { shareColour } from "../shared/share-colours.js";
import { mayAttend, weightsOf } from "./readings.js";

/** @typedef {import("./readings.js").Reading} Reading */
/** A pair of tokens. @typedef {{from: number, to: number}} Pair */

const NAMES = 76;
const TOP = 58;
const MOST_CELL = 26;
const LEAST_CELL = 4;
/** Least size of a cell whose token has a label. */
const LABELLED = 9;
const RIGHT = 26;
/** Shade of a pair that the mask allows. */
const ALLOWED = 0.45;
const HELP = "Up and down: the token that attends. Left and right: the one that is attended to.";

export class AttentionMatrix {
  /** @type {Reading | null} */
  #drawn = null;
  /** @type {Pair} */
  #pair = { from: 0, to: 0 };
  #cell = MOST_CELL;

  /** `look`: called with the pair that is pointed at, or null. @param {string} name @param {(pair: Pair | null) => void} look */
  constructor(name, look) {
    this.look = look;
    this.node = el("div", "mk-matrix");
    this.canvas = this.node.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    const help = this.node.appendChild(el("p", "vh", HELP));
    help.id = `mk-help-${name.toLowerCase()}`;
    Object.assign(this.node, { tabIndex: 0, role: "slider", ariaLabel: `Attention of the ${name.toLowerCase()}`, ariaValueMin: "0" });
    this.node.setAttribute("aria-describedby", help.id);
    this.node.addEventListener("keydown", (event) => this.#onKey(event));
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") look(this.#under(event));
    });
    this.canvas.addEventListener("pointerleave", () => look(null));
    this.canvas.addEventListener("click", (event) => look(this.#under(event)));
  }

  /**
   * `isMask`: shade what the mask allows, not the weights; `layer`: null for the mean of all; `pair`: to mark, null
   * for none; `words`: what it says.
   *
   * @param {Reading} reading
   * @param {{isMask: boolean, layer: number | null, pair: Pair | null, words: string}} how
   */
  draw(reading, { isMask, layer, pair, words }) {
    const n = reading.tokens.length;
    this.#drawn = reading;
    if (pair) this.#pair = pair;
    const { from, to } = this.#pair;
    const now = Math.min(n * n - 1, from * n + to);
    Object.assign(this.node, { ariaValueMax: String(n * n - 1), ariaValueNow: String(now), ariaValueText: words });
    const [context, width] = fitCanvas(this.canvas);
    this.#cell = clamp((width - NAMES - RIGHT) / n, LEAST_CELL, MOST_CELL);
    setVars(this.canvas, { "--h": `${Math.ceil(TOP + n * this.#cell + 2)}px` });
    if (!width) return;
    const side = n * this.#cell;
    clipped(context, () => context.rect(NAMES, TOP, side, side), () => hatch(context, NAMES, TOP, side, side));
    const weights = weightsOf(reading, layer);
    const gap = this.#cell > 8 ? 1 : 0;
    for (let i = 0; i < n * n; i += 1) {
      const [row, column] = [Math.floor(i / n), i % n];
      if (!mayAttend(reading, row, column)) continue;
      context.fillStyle = palette.ground;
      context.fillRect(this.#x(column), this.#y(row), this.#cell, this.#cell);
      context.fillStyle = isMask ? shade(ALLOWED) : shareColour(weights[i]);
      context.fillRect(this.#x(column), this.#y(row), this.#cell - gap, this.#cell - gap);
    }
    this.#drawNames(context, reading, pair);
    if (!pair) return;
    context.strokeStyle = palette.lamp;
    context.lineWidth = 2;
    context.strokeRect(this.#x(pair.to), this.#y(pair.from), this.#cell - gap, this.#cell - gap);
  }

  /** @param {number} column */
  #x = (column) => NAMES + column * this.#cell;
  /** @param {number} row */
  #y = (row) => TOP + row * this.#cell;

  /** @param {CanvasRenderingContext2D} context @param {Reading} reading @param {Pair | null} pair */
  #drawNames(context, { tokens }, pair) {
    const every = Math.ceil(LABELLED / this.#cell);
    const half = this.#cell / 2;
    tokens.forEach((token, i) => {
      if (i % every) return;
      const text = tokenLabel(token, "·").slice(0, 10);
      label(context, text, NAMES - 6, this.#y(i) + half, { align: "end", colour: i === pair?.from ? "lamp" : "ink-2" });
      context.save();
      context.translate(this.#x(i) + half, TOP - 6);
      context.rotate(-Math.PI / 3);
      label(context, text, 0, 0, { colour: i === pair?.to ? "lamp" : "ink-2" });
      context.restore();
    });
  }

  /** @param {MouseEvent} event @returns {Pair | null} */
  #under({ offsetX, offsetY }) {
    const from = Math.floor((offsetY - TOP) / this.#cell);
    const to = Math.floor((offsetX - NAMES) / this.#cell);
    const n = this.#drawn?.tokens.length ?? 0;
    return from >= 0 && from < n && to >= 0 && to < n ? { from, to } : null;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.#drawn) return;
    const n = this.#drawn.tokens.length;
    const { from, to } = this.#pair;
    /** @type {Record<string, Pair>} */
    const keys = {
      ArrowUp: { from: from - 1, to },
      ArrowDown: { from: from + 1, to },
      ArrowLeft: { from, to: to - 1 },
      ArrowRight: { from, to: to + 1 },
      Home: { from, to: 0 },
      End: { from, to: n - 1 },
    };
    const next = keys[event.key];
    if (!next) return;
    event.preventDefault();
    if (next.from >= 0 && next.from < n && next.to >= 0 && next.to < n) this.look(next);
  }
}
