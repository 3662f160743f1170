// Attention of a text as a matrix: a row for each token that attends, a column for each that is attended to.

import { clamp, el, fitCanvas, setVars } from "../../ui/dom.js";
import { tokenLabel } from "../../ui/format.js";
import { palette, shade } from "../../ui/palette.js";
import { clipped, hatch, label, labelWidth } from "../shared/chart.js";
import { shareColour } from "../shared/share-colours.js";
import { mayAttend, weightsOf } from "./readings.js";

/** @typedef {import("./readings.js").Reading} Reading */
/** A pair of tokens. @typedef {{from: number, to: number}} Pair */

/** Room for the names of rows, at least and at most. */
const [LEAST_NAMES, MOST_NAMES] = [20, 76];
/** Room between a name and the cells, on both sides of it. */
const GAP = 12;
const TOP = 58;
const MOST_CELL = 26;
const LEAST_CELL = 4;
/** Least size of a cell whose token has a label. */
const LABELLED = 9;
const RIGHT = 26;
/** Shade of a pair that the mask allows. */
const ALLOWED = 0.45;
const HELP = "Up and down: the token that attends. Left and right: the one that is attended to.";

/** @param {string} token */
const short = (token) => tokenLabel(token, "·").slice(0, 10);

export class AttentionMatrix {
  /** @type {Reading | null} */
  #drawn = null;
  /** @type {Pair} */
  #pair = { from: 0, to: 0 };
  #cell = MOST_CELL;
  #names = MOST_NAMES;

  /**
   * `id`: one word, of this matrix alone; `look`: called with the pair that is pointed at, or null.
   *
   * @param {string} id
   * @param {string} label
   * @param {(pair: Pair | null) => void} look
   */
  constructor(id, label, look) {
    this.look = look;
    this.node = el("div", "mk-matrix");
    this.canvas = this.node.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    const help = this.node.appendChild(el("p", "vh", HELP));
    help.id = `mk-help-${id}`;
    Object.assign(this.node, { tabIndex: 0, role: "slider", ariaLabel: label, ariaValueMin: "0" });
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
    const [nRows, n] = [reading.tokens.length, reading.keys.length];
    this.#drawn = reading;
    if (pair) this.#pair = pair;
    const { from, to } = this.#pair;
    const last = nRows * n - 1;
    const now = Math.min(last, from * n + to);
    Object.assign(this.node, { ariaValueMax: String(last), ariaValueNow: String(now), ariaValueText: words });
    const [context, width] = fitCanvas(this.canvas);
    const widest = Math.max(...reading.tokens.map((token) => labelWidth(context, short(token))));
    this.#names = clamp(widest + GAP, LEAST_NAMES, MOST_NAMES);
    this.#cell = clamp((width - this.#names - RIGHT) / n, LEAST_CELL, MOST_CELL);
    setVars(this.canvas, { "--h": `${Math.ceil(TOP + nRows * this.#cell + 2)}px` });
    if (!width) return;
    const [wide, high] = [n * this.#cell, nRows * this.#cell];
    clipped(context, () => context.rect(this.#names, TOP, wide, high), () => hatch(context, this.#names, TOP, wide, high));
    const weights = weightsOf(reading, layer);
    const gap = this.#cell > 8 ? 1 : 0;
    for (let i = 0; i <= last; i += 1) {
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
  #x = (column) => this.#names + column * this.#cell;
  /** @param {number} row */
  #y = (row) => TOP + row * this.#cell;

  /** @param {CanvasRenderingContext2D} context @param {Reading} reading @param {Pair | null} pair */
  #drawNames(context, { tokens, keys }, pair) {
    const every = Math.ceil(LABELLED / this.#cell);
    const half = this.#cell / 2;
    tokens.forEach((token, i) => {
      if (i % every) return;
      label(context, short(token), this.#names - 6, this.#y(i) + half, { align: "end", colour: i === pair?.from ? "lamp" : "ink-2" });
    });
    keys.forEach((token, i) => {
      if (i % every) return;
      context.save();
      context.translate(this.#x(i) + half, TOP - 6);
      context.rotate(-Math.PI / 3);
      label(context, short(token), 0, 0, { colour: i === pair?.to ? "lamp" : "ink-2" });
      context.restore();
    });
  }

  /** @param {MouseEvent} event @returns {Pair | null} */
  #under({ offsetX, offsetY }) {
    const from = Math.floor((offsetY - TOP) / this.#cell);
    const to = Math.floor((offsetX - this.#names) / this.#cell);
    return this.#isPair({ from, to }) ? { from, to } : null;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.#drawn) return;
    const { from, to } = this.#pair;
    /** @type {Record<string, Pair>} */
    const keys = {
      ArrowUp: { from: from - 1, to },
      ArrowDown: { from: from + 1, to },
      ArrowLeft: { from, to: to - 1 },
      ArrowRight: { from, to: to + 1 },
      Home: { from, to: 0 },
      End: { from, to: this.#drawn.keys.length - 1 },
    };
    const next = keys[event.key];
    if (!next) return;
    event.preventDefault();
    if (this.#isPair(next)) this.look(next);
  }

  /** @param {Pair} pair */
  #isPair({ from, to }) {
    const { tokens = [], keys = [] } = this.#drawn ?? {};
    return from >= 0 && from < tokens.length && to >= 0 && to < keys.length;
  }
}
