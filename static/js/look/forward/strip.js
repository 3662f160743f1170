// A vector as a strip: a bar per number, up or down from zero, and the number under the pointer.

import { clamp, el, fitCanvas, setAttr, setText } from "../../ui/dom.js";
import { palette } from "../../ui/palette.js";
import { extent, number } from "./vectors.js";

/** @typedef {import("./vectors.js").Vector} Vector */

/**
 * Draw bars in a box of a canvas; where several numbers share a pixel, from their smallest to their
 * largest.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Vector} values
 * @param {{top: number, width: number, height: number, most: number, colour: "data" | "ink-3"}} box
 */
export function drawBars(context, values, { top, width, height, most, colour }) {
  const n = values.length;
  const middle = top + height / 2;
  const scale = most ? height / 2 / most : 0;
  const columns = Math.min(n, Math.max(1, Math.floor(width)));
  const pitch = width / columns;
  context.fillStyle = palette.line;
  context.fillRect(0, Math.round(middle), width, 1);
  context.fillStyle = palette[colour];
  for (let i = 0; i < columns; i += 1) {
    let low = 0;
    let high = 0;
    for (let j = Math.floor((i * n) / columns); j < Math.floor(((i + 1) * n) / columns); j += 1) {
      low = Math.min(low, values[j]);
      high = Math.max(high, values[j]);
    }
    const gap = pitch >= 4 ? 1 : 0;
    const tall = Math.max(0.5, (high - low) * scale);
    context.fillRect(i * pitch, middle - high * scale, Math.max(0.5, pitch - gap), tall);
  }
}

/** A strip with its name, its extent, and the number under the pointer or at the arrow keys. */
export class Strip {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root.appendChild(el("figure", "fw-strip"));
    const caption = this.root.appendChild(el("figcaption"));
    this.name = caption.appendChild(el("b"));
    this.extent = caption.appendChild(el("span"));
    this.canvas = this.root.appendChild(el("canvas"));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "slider");
    this.canvas.setAttribute("aria-valuemin", "0");
    this.readout = this.root.appendChild(el("p", "fw-at"));
    this.at = 0;
    /** @type {Vector} */
    this.values = [];
    /** @type {Vector | null} */
    this.beside = null;
    /** @type {string[] | undefined} */
    this.words = undefined;
    this.canvas.addEventListener("pointermove", (event) => this.#onPoint(event));
    this.canvas.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /**
   * Draw a vector and, below it, that of the neighbouring token.
   *
   * @param {import("./lines.js").Named} vector
   * @param {Vector | null} beside
   */
  draw({ name, values, words }, beside) {
    Object.assign(this, { values, beside, words });
    this.at = clamp(this.at, 0, Math.max(0, values.length - 1));
    const { min, max, norm } = extent(values);
    setText(this.name, name);
    setText(
      this.extent,
      `${values.length} numbers, ${number(min)} to ${number(max)}, norm ${number(norm)}`,
    );
    setAttr(this.canvas, "aria-label", name);
    setAttr(this.canvas, "aria-valuemax", String(values.length - 1));
    this.root.classList.toggle("two", !!beside);
    this.redraw();
  }

  redraw() {
    const { values, beside, at } = this;
    const [context, width, height] = fitCanvas(this.canvas);
    const sides = beside ? [values, beside] : [values];
    const most = Math.max(...sides.flatMap((side) => [extent(side)]).map(({ min, max }) => Math.max(-min, max)));
    const tall = height / sides.length;
    sides.forEach((side, i) => {
      drawBars(context, side, {
        top: i * tall + 1,
        width,
        height: tall - 2,
        most,
        colour: i ? "ink-3" : "data",
      });
    });
    context.fillStyle = palette.lamp;
    const pitch = width / values.length;
    context.fillRect(Math.round((at + 0.5) * pitch - 0.5), 0, 1, height);
    const other = beside && at < beside.length ? `; token before ${number(beside[at])}` : "";
    const word = this.words ? ` “${this.words[at]}”` : "";
    const text = `[${at}]${word} ${number(values[at])}${other}`;
    setText(this.readout, text);
    setAttr(this.canvas, "aria-valuenow", String(at));
    setAttr(this.canvas, "aria-valuetext", text);
  }

  /** @param {number} at */
  #show(at) {
    this.at = clamp(at, 0, this.values.length - 1);
    this.redraw();
  }

  /** @param {PointerEvent} event */
  #onPoint({ clientX }) {
    const { left, width } = this.canvas.getBoundingClientRect();
    this.#show(Math.floor(((clientX - left) / width) * this.values.length));
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.round(this.values.length / 20));
    /** @type {Record<string, number>} */
    const to = {
      ArrowRight: this.at + 1,
      ArrowUp: this.at + 1,
      ArrowLeft: this.at - 1,
      ArrowDown: this.at - 1,
      PageUp: this.at + page,
      PageDown: this.at - page,
      Home: 0,
      End: this.values.length - 1,
    };
    if (!(event.key in to)) return;
    event.preventDefault();
    event.stopPropagation();
    this.#show(to[event.key]);
  }
}
