// @ts-nocheck
// HTML table of an instrument's numbers.

import { el } from "../../ui/dom.js";
import { count } from "../../ui/format.js";

/** Maximum number of rows; files contain all. */
const MAX_ROWS = 400;
const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });

/** @typedef {{columns: (string | {name: string, format: Function})[], rows: any[][]}} Numbers */

export const nameOf = (column) => column.name ?? column;

/** Build the table of `numbers`, captioned with the instrument's title. */
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

function written(value, column) {
  if (value === null || value === undefined) return "";
  if (column.format) return column.format(value);
  return typeof value === "number" ? exact.format(value) : String(value);
}
