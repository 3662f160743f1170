// File export of an instrument: numbers as CSV or JSON, the picture as PNG.

import { download } from "../../ui/download.js";
import { paint } from "./picture.js";
import { nameOf } from "./table.js";

/**
 * @typedef {{instrument: string, title: string, source: string, model: string, device: string}} About
 */

/** Return comma-separated values (RFC 4180): CRLF, quotes where needed. @param {Numbers} numbers */
export function csv({ columns, rows }) {
  /** @param {unknown} value */
  const field = (value) => {
    const text = String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  /** @param {unknown[]} values */
  const line = (values) => `${values.map(field).join(",")}\r\n`;
  return line(columns.map(nameOf)) + rows.map(line).join("");
}

/**
 * Return the numbers as JSON, with their description and what they were measured on.
 *
 * @param {Numbers} numbers
 * @param {About} about
 */
export function json({ columns, rows }, about) {
  return `${JSON.stringify({ ...about, columns: columns.map(nameOf), rows }, null, 1)}\n`;
}

/**
 * Download a file; `kind` is "csv", "json" or "png". `about`: {instrument, …}.
 *
 * @param {string} kind
 * @param {{numbers: () => Numbers, about: About, root: HTMLElement, lines: string[]}} options
 */
export async function save(kind, { numbers, about, root, lines }) {
  /** @type {Record<string, () => Blob | Promise<Blob>>} */
  const blob = {
    csv: () => new Blob([csv(numbers())], { type: "text/csv" }),
    json: () => new Blob([json(numbers(), about)], { type: "application/json" }),
    png: () => paint(root, lines),
  };
  download(await blob[kind](), `tokenglass-${about.instrument}.${kind}`);
}
