// Dispatches of a step in order, with each one's share of time and bytes.

import { el, setText, setVars, targetOf } from "../../ui/dom.js";
import { bytes, count } from "../../ui/format.js";
import { columnsOf, neighbours, rowsOf } from "./order.js";
import { RovingTabindex } from "../shared/roving.js";

/** Format milliseconds as microseconds or more. @param {number} ms */
export function short(ms) {
  if (ms >= 10) return `${ms.toFixed(0)} ms`;
  if (ms >= 1) return `${ms.toFixed(2)} ms`;
  return ms >= 0.01 ? `${(1000 * ms).toFixed(0)} µs` : `${(1000 * ms).toFixed(1)} µs`;
}

const KEYS = { next: "ArrowRight", previous: "ArrowLeft", after: "ArrowDown", before: "ArrowUp" };

export class PlanGraph {
  /**
   * `onChoose(number)`: a dispatch was pressed.
   *
   * @param {HTMLElement} root
   * @param {(number: number) => void} onChoose
   */
  constructor(root, onChoose) {
    this.root = root.appendChild(el("div", "pl-graph"));
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "Dispatches, in the order they run");
    /** @type {Answers.PlanDispatch[]} */
    this.dispatches = [];
    /** Elements by the number of the dispatch. @type {{cell: HTMLElement, figure: HTMLElement}[]} */
    this.cells = [];
    /** @type {HTMLElement[][]} */
    this.lines = [];
    /** @type {{row: HTMLElement, layer: number | null}[]} */
    this.rows = [];
    /** Those that were drawn; undefined: none yet. @type {number[] | null | undefined} */
    this.times = undefined;
    this.marked = "";
    this.root.addEventListener("click", (event) => {
      const cell = targetOf(event).closest("button");
      if (cell) onChoose(Number(cell.dataset.number));
    });
    this.roving = new RovingTabindex(this.root, KEYS, () => this.lines);
  }

  /**
   * Draw the dispatches of a plan; `measure` adds their shares.
   *
   * @param {Answers.PlanDispatch[]} dispatches
   */
  draw(dispatches) {
    this.dispatches = dispatches;
    this.times = undefined;
    this.marked = "";
    this.cells = [];
    this.lines = [];
    const rows = rowsOf(dispatches);
    const columns = columnsOf(rows);
    setVars(this.root, { "--columns": columns.length });
    this.rows = rows.map((row) => ({ row: this.#row(row, columns), layer: row.layer }));
    this.root.replaceChildren(...this.rows.map(({ row }) => row));
    this.roving.reset();
  }

  /**
   * Draw sizes relative to the largest: `times` in ms by dispatch, or null while unknown.
   *
   * @param {number[] | null} times
   */
  measure(times) {
    if (times === this.times) return;
    this.times = times;
    const sizes = this.dispatches.map(({ n_bytes: n }) => n ?? 0);
    const [largest, longest] = [Math.max(1, ...sizes), times ? Math.max(1e-9, ...times) : 1];
    this.cells.forEach(({ cell, figure }, number) => {
      const ms = times?.[number] ?? 0;
      setVars(cell, { "--bytes": sizes[number] / largest, "--time": ms / longest });
      const size = this.dispatches[number].n_bytes;
      const text = times ? short(ms) : size === null ? "" : bytes(size);
      setText(figure, text);
      cell.setAttribute("aria-label", this.#spoken(number, times && short(ms)));
    });
    this.root.toggleAttribute("data-timed", !!times);
  }

  /**
   * Highlight the selected dispatch, its producers and consumers, and the core sample's layer.
   *
   * @param {number | null} number
   * @param {number | null} layer
   */
  mark(number, layer) {
    if (this.marked === `${number} ${layer}`) return;
    this.marked = `${number} ${layer}`;
    const { from, to } = number === null ? NO_NEIGHBOURS : neighbours(this.dispatches, number);
    this.cells.forEach(({ cell }, i) => {
      cell.setAttribute("aria-pressed", String(i === number));
      cell.classList.toggle("from", from.has(i));
      cell.classList.toggle("to", to.has(i));
    });
    for (const { row, layer: own } of this.rows)
      row.classList.toggle("at", layer !== null && own === layer);
  }

  /** @param {PlanRow} planRow @param {string[]} columns */
  #row({ title, layer, cells }, columns) {
    const row = el("div", layer === null ? "pl-row ends" : "pl-row");
    if (layer !== null) row.dataset.layer = String(layer);
    row.append(el("span", "pl-title", title));
    /** @type {HTMLElement[]} */
    const line = [];
    for (const { name, numbers } of cells) {
      const box = row.appendChild(el("div", "pl-cell"));
      if (layer !== null) setVars(box, { "--column": columns.indexOf(name) + 2 });
      for (const number of numbers) line.push(box.appendChild(this.#cell(number, name)));
    }
    this.lines.push(line);
    return row;
  }

  /** @param {number} number @param {string} name */
  #cell(number, name) {
    const cell = el("button");
    cell.type = "button";
    cell.dataset.number = String(number);
    const figure = el("span", "pl-figure");
    cell.append(el("span", "pl-op", name), figure, el("i", "time"), el("i", "size"));
    this.cells[number] = { cell, figure };
    return cell;
  }

  /** @param {number} number @param {string | null} time */
  #spoken(number, time) {
    const { label, n_bytes: n } = this.dispatches[number];
    const parts = [`${number + 1} of ${count(this.dispatches.length)}: ${label}`];
    if (time) parts.push(time);
    if (n !== null) parts.push(bytes(n));
    return parts.join(", ");
  }
}

const NO_NEIGHBOURS = /** @type {ReturnType<typeof neighbours>} */ ({ from: new Set(), to: new Set() });
