// Tables of the instruments: made, filled, and drawn from the columns that are exported as CSV.

import { el, one, setVars } from "../../ui/dom.js";
import { count } from "../../ui/format.js";

/** Maximum number of rows; files contain all. */
const MAX_ROWS = 400;
const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });

/** @param {Column} column */
export const nameOf = (column) => (typeof column === "string" ? column : column.name);

/** Name of a column, with the class of its cells if they have one, such as "n" for numbers; "" has no name. @typedef {string | [name: string, className: string]} ColumnName */

/** Add the row of column names to a table, and return it. @param {HTMLTableElement} table @param {ColumnName[]} columns */
export function addHead(table, columns) {
  const head = table.createTHead().insertRow();
  for (const column of columns) {
    const [name, kind] = typeof column === "string" ? [column, ""] : column;
    const cell = head.appendChild(el(name ? "th" : "td", kind, name));
    if (name) cell.setAttribute("scope", "col");
  }
  return head;
}

/**
 * Create an empty table. A visible caption is one without the class "vh".
 *
 * @param {string} className
 * @param {string} caption
 * @param {ColumnName[]} columns
 * @param {string} [captionClass]
 */
export function newTable(className, caption, columns, captionClass = "vh") {
  const table = el("table", `table ${className}`);
  table.append(el("caption", captionClass, caption));
  addHead(table, columns);
  table.createTBody();
  return table;
}

/**
 * Add a row to a table of `newTable`; its first cell names it. Cells have the classes of their columns.
 *
 * @param {HTMLTableElement} table
 * @param {(string | Node)[]} cells
 */
export function addRow(table, cells) {
  const heads = one(table, "thead tr").children;
  const row = table.tBodies[0].insertRow();
  cells.forEach((content, i) => {
    const isName = !i && content !== "";
    const cell = row.appendChild(el(isName ? "th" : "td", heads[i]?.className));
    if (isName) cell.setAttribute("scope", "row");
    cell.append(content);
  });
  return row;
}

/** Columns of numbers. @param {string[]} names @returns {[name: string, className: string][]} */
export const numeric = (names) => names.map((name) => [name, "n"]);

/** Create a bar of this share of its cell's width. @param {number} share @param {string} [className] */
export const shareBar = (share, className = "") => setVars(el("i", `share ${className}`), { "--p": share });

/** Remove the rows of a table of `newTable`. @param {HTMLTableElement} table */
export const clearRows = (table) => table.tBodies[0].replaceChildren();

/**
 * Build the table of `numbers`, captioned with the instrument's title.
 *
 * @param {Numbers} numbers
 * @param {string} caption
 */
export function drawTable({ columns, rows }, caption) {
  const table = newTable(
    "numbers",
    caption,
    columns.map((column, i) => [nameOf(column), rows.some((row) => typeof row[i] === "number") ? "n" : ""]),
  );
  for (const row of rows.slice(0, MAX_ROWS))
    addRow(table, columns.map((column, i) => written(row[i], column)));
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
