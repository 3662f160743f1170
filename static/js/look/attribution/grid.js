// Grid of attention knock-out: the parts of the prompt, or the heads, by the layers in which attention is masked,
// each cell as dark as the log-probability falls; above it the sum over the rows.

import { clamp, el, fitCanvas, setVars } from "../../ui/dom.js";
import { palette, shade } from "../../ui/palette.js";
import { label, LabelRow, rule } from "../shared/chart.js";
import { signed } from "./list.js";
import { rowName } from "./words.js";

/** @typedef {import("./measure.js").Measurement} Measurement */
/** @typedef {import("./measure.js").Step} Cell */

const NAMES = 84;
const HEAD = 16;
const SUMS = 44;
const AXIS = 16;
const ROW = 18;
/** Space between the column of all layers and those of windows. */
const GAP = 10;
const ALL = 30;
const RIGHT = 6;
/** Least distance of layer numbers. */
const LABEL = 24;
const HELP = "Up and down: the row. Left and right: the layers; at the left end, all of them.";

export class KnockoutGrid {
  /** @type {Measurement | null} */
  #drawn = null;
  /** Cell with the keyboard. @type {Cell} */
  #cell = { unit: 0, window: null };
  #column = 1;

  /** `look`: called with the cell to show, null: none is pointed at. @param {(cell: Cell | null) => void} look */
  constructor(look) {
    this.look = look;
    this.node = el("div", "ab-grid");
    this.canvas = this.node.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    const help = this.node.appendChild(el("p", "vh", HELP));
    help.id = "ab-grid-help";
    Object.assign(this.node, { tabIndex: 0, role: "slider", ariaValueMin: "0" });
    this.node.setAttribute("aria-describedby", help.id);
    this.node.addEventListener("keydown", (event) => this.#onKey(event));
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") look(this.#under(event));
    });
    this.canvas.addEventListener("pointerleave", () => look(null));
    this.canvas.addEventListener("click", (event) => this.#choose(this.#under(event)));
  }

  /** `cell`: the one that is looked at; `words`: what it says. @param {Measurement} measurement @param {Cell} cell @param {string} words */
  draw(measurement, cell, words) {
    const { units, windows } = measurement;
    this.#drawn = measurement;
    this.#cell = cell;
    const at = cell.unit * (windows.length + 1) + (cell.window ?? -1) + 1;
    const ariaValueMax = String(units.length * (windows.length + 1) - 1);
    this.node.ariaLabel = measurement.isByHead ? "Heads and layers" : "Part of the prompt and layers";
    Object.assign(this.node, { ariaValueMax, ariaValueNow: String(Math.max(0, at)), ariaValueText: words });
    setVars(this.canvas, { "--h": `${top(units.length)}px` });
    const [context, width] = fitCanvas(this.canvas);
    if (!width || !windows.length) return;
    this.#column = (width - NAMES - ALL - GAP - RIGHT) / windows.length;
    this.#drawSums(context, measurement, width);
    this.#drawCells(context, measurement);
    this.#drawNames(context, measurement);
    if (cell.unit < 0) return;
    context.strokeStyle = palette.ink;
    context.lineWidth = 1.5;
    const [x, wide] = this.#across(cell.window);
    context.strokeRect(x, top(cell.unit), wide - 1, ROW - 1);
  }

  /** Left edge and width of a column. @param {number | null} window @returns {[x: number, width: number]} */
  #across(window) {
    return window === null ? [NAMES, ALL] : [NAMES + ALL + GAP + window * this.#column, this.#column];
  }

  /** @param {CanvasRenderingContext2D} context @param {Measurement} measurement */
  #drawCells(context, measurement) {
    const { units, windows, largest: most } = measurement;
    for (const window of [null, ...windows.keys()]) {
      const [x, wide] = this.#across(window);
      units.forEach((_, unit) => {
        if (!measurement.hasCell(unit, window)) return;
        const effect = measurement.effect(unit, window);
        context.fillStyle = effect === null ? palette.plate : effect < 0 ? palette.lamp : shade(effect / most);
        context.globalAlpha = effect !== null && effect < 0 ? -effect / most : 1;
        context.fillRect(x, top(unit), Math.max(1, wide - 1), ROW - 1);
      });
    }
    context.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} context @param {Measurement} measurement @param {number} width */
  #drawSums(context, measurement, width) {
    const sums = measurement.windows.map((_, window) => measurement.sum(window));
    const known = sums.filter((sum) => sum !== null);
    const high = Math.max(0, ...known);
    const low = Math.min(0, ...known);
    const y = (/** @type {number} */ sum) => HEAD + (SUMS - 4) * (1 - (sum - low) / (high - low || 1));
    const [left] = this.#across(0);
    const head = new LabelRow(context, HEAD / 2, left, width);
    const { nDone, strongest, largest } = measurement;
    if (nDone) head.add(`strongest ${signed(strongest, largest)} nats`, [[width - RIGHT, "end"]]);
    head.add(measurement.isByHead ? "sum of the heads" : "sum of the parts", [[left, "start"]]);
    rule(context, left, y(0), width - left - RIGHT, 1, "edge");
    if (!known.length) return;
    label(context, signed(high, high || 1), left - 5, y(high) + 5, { align: "end" });
    context.strokeStyle = palette.lamp;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    sums.forEach((sum, window) => {
      if (sum === null) return;
      const [x, wide] = this.#across(window);
      context.lineTo(x + wide / 2, y(sum));
      if (known.length < 3) context.rect(x + wide / 2 - 1, y(sum) - 1, 2, 2);
    });
    context.stroke();
  }

  /** @param {CanvasRenderingContext2D} context @param {Measurement} measurement */
  #drawNames(context, measurement) {
    const { units, windows } = measurement;
    units.forEach((_, unit) => {
      const on = unit === this.#cell.unit;
      const name = fitting(context, rowName(measurement, unit));
      label(context, name, NAMES - 8, top(unit) + ROW / 2, { align: "end", colour: on ? "ink" : "ink-2" });
    });
    const axis = HEAD + SUMS + AXIS / 2;
    label(context, "all", NAMES + ALL / 2, axis, { align: "center" });
    const every = [1, 2, 5, 10, 20].find((step) => step * this.#column >= LABEL) ?? 50;
    for (let window = 0; window < windows.length; window += every) {
      const [x, wide] = this.#across(window);
      label(context, window || wide < 48 ? String(window) : "layer 0", x + wide / 2, axis, { align: "center" });
    }
    label(context, "layer", NAMES - 8, axis, { align: "end" });
  }

  /** @param {MouseEvent} event @returns {Cell | null} */
  #under({ offsetX, offsetY }) {
    const unit = Math.floor((offsetY - top(0)) / ROW);
    if (!this.#drawn || unit < 0 || unit >= this.#drawn.units.length || offsetX < NAMES) return null;
    if (offsetX < NAMES + ALL + GAP / 2) return this.#drawn.hasCell(unit, null) ? { unit, window: null } : null;
    const window = Math.floor((offsetX - NAMES - ALL - GAP) / this.#column);
    return { unit, window: clamp(window, 0, this.#drawn.windows.length - 1) };
  }

  /** @param {Cell | null} cell */
  #choose(cell) {
    if (cell) this.look(cell);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.#drawn) return;
    const { units, windows } = this.#drawn;
    const unit = Math.max(0, this.#cell.unit);
    const column = this.#cell.window ?? -1;
    /** @type {Record<string, [unit: number, column: number]>} */
    const keys = {
      ArrowUp: [unit - 1, column],
      ArrowDown: [unit + 1, column],
      ArrowLeft: [unit, column - 1],
      ArrowRight: [unit, column + 1],
      Home: [unit, -1],
      End: [unit, windows.length - 1],
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    const [to, window] = keys[event.key];
    const cell = { unit: to, window: window < 0 ? null : window };
    if (to < 0 || to >= units.length || window < -1 || window >= windows.length) return;
    if (this.#drawn.hasCell(cell.unit, cell.window)) this.look(cell);
  }
}

/** @param {number} unit */
const top = (unit) => HEAD + SUMS + AXIS + unit * ROW;

/** The text, or what of it fits beside the cells. @param {CanvasRenderingContext2D} context @param {string} text */
function fitting(context, text) {
  const room = NAMES - 12;
  if (context.measureText(text).width <= room) return text;
  let n = text.length;
  while (n > 1 && context.measureText(`${text.slice(0, n)}…`).width > room) n -= 1;
  return `${text.slice(0, n)}…`;
}
