// What stands below the vectors of a line: the keys that the head compares, the parts of the heads, the
// MLP units that fire most, the nearest tokens, and the draw.

import { el, newButton } from "../../ui/dom.js";
import { percent, tokenLabel } from "../../ui/format.js";
import { addRow, newTable, shareBar } from "../shared/table.js";
import { largest, number, products, rowOf } from "./vectors.js";

/** @typedef {import("./vectors.js").Arrays} Arrays */
/** @typedef {{columns: string[], rows: (string | number | null)[][]}} PartNumbers */
/**
 * What is drawn: an answer, the texts of its sequence, and the token drawn after the focused one.
 *
 * @typedef {{arrays: Arrays, info: FrameAnswer["info"], texts: string[], next: Token | null,
 *   onHead: (head: number) => void, onKey: (position: number) => void, key: number | null}} Shown
 */

const SHOWN_KEYS = 12;
const SHOWN_UNITS = 12;

/** @param {import("./lines.js").Part} part @param {Shown} shown @returns {HTMLElement} */
export function drawPart(part, shown) {
  if (part === "keys") return drawKeys(shown);
  if (part === "heads") return drawHeads(shown);
  if (part === "units") return drawUnits(shown);
  if (part === "draw") return drawDraw(shown);
  return drawNear(shown, part.near);
}

/** Numbers of a part for the table. @param {import("./lines.js").Part} part @param {Shown} shown @returns {PartNumbers} */
export function tableOf(part, shown) {
  if (part === "keys") return tableOfKeys(shown);
  if (part === "heads") return tableOfHeads(shown);
  if (part === "units") return tableOfUnits(shown);
  if (part === "draw") return tableOfDraw(shown);
  return tableOfNear(shown, part.near);
}

/**
 * @param {string} caption
 * @param {PartNumbers} numbers
 * @param {(row: (string | number | null)[], i: number) => {share?: number, onClick?: () => void, on?: boolean}} [mark]
 */
function drawRows(caption, { columns, rows }, mark = () => ({})) {
  const isNumber = (/** @type {number} */ i) => rows.some((row) => typeof row[i] === "number");
  const heads = columns.map((name, i) => /** @type {[string, string]} */ ([name, isNumber(i) ? "n" : ""]));
  const table = newTable("fw-table", caption, heads, "");
  rows.forEach((row, i) => {
    const { share, onClick, on } = mark(row, i);
    const texts = row.map((value) => (typeof value === "number" ? written(value) : (value ?? "")));
    const line = addRow(table, texts);
    line.classList.toggle("on", !!on);
    if (onClick) {
      const button = newButton(texts[0], onClick, "text");
      button.setAttribute("aria-pressed", String(!!on));
      line.cells[0].replaceChildren(button);
    }
    if (share !== undefined) line.insertCell().append(shareBar(share));
  });
  return table;
}

/** @param {number} value */
const written = (value) => (Number.isInteger(value) ? String(value) : number(value));

// ---- keys ------------------------------------------------------------------------------------

/** @param {Shown} shown @returns {PartNumbers} */
function tableOfKeys({ arrays, info, texts }) {
  const { first_key: first } = info;
  const { dots, scores, weights } = arrays;
  return {
    columns: ["token", "position", "q · k", "score", "weight"],
    rows: Array.from(weights.values, (weight, i) => [
      tokenLabel(texts[first + i], "·"),
      first + i,
      dots.values[i],
      scores.values[i],
      weight,
    ]),
  };
}

/** @param {Shown} shown */
function drawKeys(shown) {
  const { arrays, info, key, onKey } = shown;
  const all = tableOfKeys(shown);
  const best = largest(arrays.weights.values, SHOWN_KEYS);
  const box = el("div");
  const caption = `The ${best.length} tokens with the largest weights, of ${all.rows.length} that the head sees`;
  const chosen = keyOf(shown);
  box.append(
    drawRows(caption, { ...all, rows: best.map((i) => all.rows[i]) }, (row, i) => ({
      share: Number(row[4]),
      onClick: () => onKey(info.first_key + best[i]),
      on: key !== null && best[i] === chosen,
    })),
    el("p", "fw-note", sumOf(shown, chosen)),
  );
  return box;
}

/** Index of the key whose product with the query is shown: the selected one, or that of most weight. @param {Shown} shown */
export function keyOf({ arrays, info, key }) {
  const at = (key ?? -1) - info.first_key;
  return at >= 0 && at < arrays.weights.values.length ? at : largest(arrays.weights.values, 1)[0];
}

/** The products q · k of the selected key, number by number. @param {Shown} shown */
export function keyProducts({ arrays, info }, /** @type {number} */ at) {
  const q = rowOf(arrays, "rot_q", info.head);
  const k = rowOf(arrays, "keys", at);
  return q && k ? products(q, k) : [];
}

/** @param {Shown} shown @param {number} at */
function sumOf({ arrays, info, texts }, at) {
  const word = tokenLabel(texts[info.first_key + at], "·");
  const dot = number(arrays.dots.values[at]);
  const score = number(arrays.scores.values[at]);
  const capped = info.softcap ? `, capped at ${info.softcap}` : "";
  return `With “${word}”: the products q · k above add up to ${dot}, times ${number(info.scale)}${capped} is ${score}.`;
}

// ---- heads -----------------------------------------------------------------------------------

/** @param {Shown} shown @returns {PartNumbers} */
function tableOfHeads({ arrays }) {
  const { head_norms: norms, head_cosines: cosines } = arrays;
  return {
    columns: ["head", "norm of its part", "cosine to Δ attention"],
    rows: Array.from(norms.values, (norm, head) => [head, norm, cosines.values[head]]),
  };
}

/** @param {Shown} shown */
function drawHeads(shown) {
  const { arrays, info, onHead } = shown;
  const most = Math.max(...arrays.head_norms.values) || 1;
  return drawRows("Each head’s part of W_O", tableOfHeads(shown), (row) => ({
    share: Number(row[1]) / most,
    onClick: () => onHead(Number(row[0])),
    on: row[0] === info.head,
  }));
}

// ---- units of the MLP ------------------------------------------------------------------------

/** @param {Shown} shown @param {number[]} [units] @returns {PartNumbers} */
function tableOfUnits({ arrays }, units) {
  const { gate, act, up, ffn_hidden: hidden } = arrays;
  const all = units ?? Array.from(hidden.values, (_, i) => i);
  const columns = gate ? ["unit", "gate", "act(gate)", "up", "gives"] : ["unit", "in", "gives"];
  return {
    columns,
    rows: all.map((i) => [
      i,
      ...(gate ? [gate.values[i], act.values[i]] : []),
      up.values[i],
      hidden.values[i],
    ]),
  };
}

/** @param {Shown} shown */
function drawUnits(shown) {
  const { values } = shown.arrays.ffn_hidden;
  const best = largest(values, SHOWN_UNITS);
  const most = Math.abs(values[best[0]]) || 1;
  return drawRows(`The units that fire most, of ${values.length}`, tableOfUnits(shown, best), (row) => ({
    share: Math.abs(Number(row.at(-1))) / most,
  }));
}

// ---- tokens ----------------------------------------------------------------------------------

/** Names of the vectors by row of `near_ids`. */
const VECTORS = ["the stream before the layer", "Δ attention", "the stream after attention", "Δ MLP", "the stream after the MLP", "the stream after the last layer"];

/** @param {Shown} shown @param {number} at @returns {PartNumbers} */
function tableOfNear({ arrays, info }, at) {
  const ids = rowOf(arrays, "near_ids", at) ?? [];
  const logits = rowOf(arrays, "near_logits", at) ?? [];
  const shares = rowOf(arrays, "near_probabilities", at) ?? [];
  return {
    columns: ["nearest token", "id", "score", "share"],
    rows: Array.from(ids, (id, i) => [info.pieces?.[id] ?? String(id), id, logits[i], shares[i]]),
  };
}

/** @param {Shown} shown @param {number} at */
function drawNear(shown, at) {
  const { columns, rows } = tableOfNear(shown, at);
  const words = rows.map(([word, ...others]) => [tokenLabel(String(word), "–"), ...others]);
  const caption =
    at === VECTORS.length - 1
      ? "The tokens with the highest scores"
      : `Nearest tokens: what final norm and W_unembed would make of ${VECTORS[at]} alone`;
  return drawRows(caption, { columns, rows: words }, (row) => ({ share: Number(row[3]) }));
}

// ---- the draw --------------------------------------------------------------------------------

/** @param {Shown} shown @returns {PartNumbers} */
function tableOfDraw({ next }) {
  return {
    columns: ["candidate", "before filters", "after filters", "removed by"],
    rows: (next?.candidates ?? []).map(({ text, before, after, cut }) => [text, before, after, cut]),
  };
}

/** @param {Shown} shown */
function drawDraw(shown) {
  const { next } = shown;
  const box = el("div");
  if (!next) {
    box.append(el("p", "fw-note", "No token was drawn here: a prompt’s tokens are given, and after the newest token none was drawn yet."));
    return box;
  }
  const { columns, rows } = tableOfDraw(shown);
  const words = rows.map(([word, ...others]) => [tokenLabel(String(word), "–"), ...others]);
  box.append(
    el("p", "fw-note", `Drawn: “${tokenLabel(next.text, "end of text")}”, ${percent(next.probability ?? NaN)} % after the filters.`),
    drawRows("Candidates of the draw", { columns, rows: words }, (row) => ({ share: Number(row[1]) })),
  );
  return box;
}
