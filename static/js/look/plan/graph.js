// @ts-nocheck
// Dispatches of a step in order, with each one's share of time and bytes.

import { el, setText, setVars } from "../../ui/dom.js";
import { bytes, count } from "../../ui/format.js";
import { columnsOf, neighbours, rowsOf } from "./order.js";
import { RovingTabindex } from "../shared/roving.js";

/** Format milliseconds as microseconds or more. */
export function short(ms) {
  if (ms >= 10) return `${ms.toFixed(0)} ms`;
  if (ms >= 1) return `${ms.toFixed(2)} ms`;
  return ms >= 0.01 ? `${(1000 * ms).toFixed(0)} µs` : `${(1000 * ms).toFixed(1)} µs`;
}

const KEYS = { next: "ArrowRight", previous: "ArrowLeft", after: "ArrowDown", before: "ArrowUp" };

export class PlanGraph {
  /** `onChoose(number)`: a dispatch was pressed. */
  constructor(root, onChoose) {
    this.root = root.appendChild(el("div", "pl-graph"));
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "Dispatches, in the order they run");
    this.dispatches = [];
    this.cells = [];
    this.lines = [];
    this.root.addEventListener("click", ({ target }) => {
      const cell = target.closest("button");
      if (cell) onChoose(Number(cell.dataset.number));
    });
    this.roving = new RovingTabindex(this.root, KEYS, () => this.lines);
  }

  /** Draw the dispatches of a plan; `measure` adds their shares. */
  draw(dispatches) {
    this.dispatches = dispatches;
    this.times = undefined;
    this.marked = "";
    this.cells = [];
    this.lines = [];
    const rows = rowsOf(dispatches);
    const columns = columnsOf(rows);
    setVars(this.root, { "--columns": columns.length });
    this.root.replaceChildren(...rows.map((row) => this.#row(row, columns)));
    this.roving.reset();
  }

  /** Draw sizes relative to the largest: `times` in ms by dispatch, or null while unknown. */
  measure(times) {
    if (times === this.times) return;
    this.times = times;
    const sizes = this.dispatches.map(({ n_bytes: n }) => n ?? 0);
    const [largest, longest] = [Math.max(1, ...sizes), times ? Math.max(1e-9, ...times) : 1];
    this.cells.forEach((cell, number) => {
      const ms = times?.[number] ?? 0;
      setVars(cell, { "--bytes": sizes[number] / largest, "--time": ms / longest });
      const size = this.dispatches[number].n_bytes;
      const text = times ? short(ms) : size === null ? "" : bytes(size);
      setText(cell.querySelector(".pl-figure"), text);
      cell.setAttribute("aria-label", this.#spoken(number, times && short(ms)));
    });
    this.root.toggleAttribute("data-timed", !!times);
  }

  /** Highlight the selected dispatch, its producers and consumers, and the core sample's layer. */
  mark(number, layer) {
    if (this.marked === `${number} ${layer}`) return;
    this.marked = `${number} ${layer}`;
    const { from, to } = number === null ? NO_NEIGHBOURS : neighbours(this.dispatches, number);
    this.cells.forEach((cell, i) => {
      cell.setAttribute("aria-pressed", String(i === number));
      cell.classList.toggle("from", from.has(i));
      cell.classList.toggle("to", to.has(i));
    });
    for (const row of this.root.children)
      row.classList.toggle("at", layer !== null && row.dataset.layer === String(layer));
  }

  #row({ title, layer, cells }, columns) {
    const row = el("div", layer === null ? "pl-row ends" : "pl-row");
    if (layer !== null) row.dataset.layer = layer;
    row.append(el("span", "pl-title", title));
    const line = [];
    for (const { name, numbers } of cells) {
      const box = row.appendChild(el("div", "pl-cell"));
      if (layer !== null) setVars(box, { "--column": columns.indexOf(name) + 2 });
      for (const number of numbers) line.push(box.appendChild(this.#cell(number, name)));
    }
    this.lines.push(line);
    return row;
  }

  #cell(number, name) {
    const cell = el("button");
    cell.type = "button";
    cell.dataset.number = number;
    const bars = [el("i", "time"), el("i", "size")];
    cell.append(el("span", "pl-op", name), el("span", "pl-figure"), ...bars);
    this.cells[number] = cell;
    return cell;
  }

  #spoken(number, time) {
    const { label, n_bytes: n } = this.dispatches[number];
    const parts = [`${number + 1} of ${count(this.dispatches.length)}: ${label}`];
    if (time) parts.push(time);
    if (n !== null) parts.push(bytes(n));
    return parts.join(", ");
  }
}

const NO_NEIGHBOURS = { from: new Set(), to: new Set() };
