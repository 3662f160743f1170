// HTML table of an instrument's numbers.

import { el } from "../../ui/dom.js";
import { count } from "../../ui/format.js";

/** Maximum number of rows; files contain all. */
const MAX_ROWS = 400;
const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });

/** @param {Column} column */
export const nameOf = (column) => (typeof column === "string" ? column : column.name);

/**
 * Build the table of `numbers`, captioned with the instrument's title.
 *
 * @param {Numbers} numbers
 * @param {string} caption
 */
export function drawTable({ columns, rows }, caption) {
  const table = el("table", "numbers");
  const foot = el("caption", "vh", caption);
  const head = table.createTHead().insertRow();
  const numeric = columns.map((_, i) => rows.some((row) => typeof row[i] === "number"));
  columns.forEach((column, i) => {
    const cell = el("th", numeric[i] ? "n" : "", nameOf(column));
    cell.scope = "col";
    head.append(cell);
  });
  const body = table.createTBody();
  for (const row of rows.slice(0, MAX_ROWS)) {
    const line = body.insertRow();
    columns.forEach((column, i) => {
      const cell = line.insertCell();
      cell.textContent = written(row[i], column);
      if (numeric[i]) cell.className = "n";
    });
  }
  table.prepend(foot);
  const box = document.createDocumentFragment();
  box.append(table);
  if (rows.length > MAX_ROWS) {
    const rest = `The first ${count(MAX_ROWS)} of ${count(rows.length)} rows; files contain all.`;
    box.append(el("p", "sub", rest));
  }
  return box;
}

/** @param {unknown} value @param {Column} column */
function written(value, column) {
  if (value === null || value === undefined) return "";
  if (typeof column !== "string") return column.format(Number(value));
  return typeof value === "number" ? exact.format(value) : String(value);
}
