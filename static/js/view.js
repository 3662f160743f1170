// Focus of the page: the answer, the token and the row of the core sample that are shown.

import { clamp } from "./ui/dom.js";
import { count } from "./ui/format.js";
import { METRICS } from "./turns/metrics.js";
import { changed, state } from "./state.js";

const values = {
  /** The answer in the core sample, or null. @type {Answer | null} */
  answer: null,
  /** Token under the pointer, or null. @type {number | null} */
  hover: null,
  /** Selected token, or null to follow the newest. @type {number | null} */
  pinned: null,
  /** Row of the core sample; null until a model is known. @type {Row | null} */
  row: null,
  /** @type {Row | null} */
  hoverRow: null,
  /** Rows per layer in the core sample. */
  parts: 2,
};

/** Only the functions below change it. @type {Readonly<typeof values>} */
export const view = values;

/** Number of generated tokens and of prompt tokens; prompt tokens are numbered −n … −1. */
export const written = () => view.answer?.tokens.length ?? 0;
export const promptLength = () => view.answer?.promptSegment?.prompt.length ?? 0;

/** Number of the focused token, null when there is none. */
export function focused() {
  const wanted = view.hover ?? view.pinned ?? (written() ? written() - 1 : null);
  if (wanted === null || written() + promptLength() === 0) return null;
  return clamp(wanted, -promptLength(), Math.max(written() - 1, -1));
}

/**
 * The focused token: a `token` event, or a token of the prompt (`prompt` is its number from 1).
 *
 * @returns {Token | PromptToken | null}
 */
export function focusedToken() {
  const index = focused();
  if (index === null || !view.answer) return null;
  return index < 0 ? promptToken(view.answer, promptLength() + index) : view.answer.tokens[index];
}

/**
 * @param {Answer} answer
 * @param {number} at
 */
function promptToken(answer, at) {
  const { prompt, promptStats, promptReused, promptMoved } = answer.promptSegment;
  const stats = promptStats[at] ?? null;
  const moved = promptMoved.find(({ first, end }) => at >= first && at < end) ?? null;
  return { ...prompt[at], prompt: at + 1, reused: at < promptReused, moved, stats };
}

/** The token's number counted from 1: "72", "prompt 3". @param {Token | PromptToken} token */
export const numberOf = (token) => (token.prompt ? `prompt ${token.prompt}` : count((focused() ?? 0) + 1));
export const focusedRow = () => view.hoverRow ?? view.row;

/** Number of layers of the model that wrote the answer shown; of the loaded one if nothing was measured. */
export function layersShown() {
  const { tokens = [], promptSegment } = view.answer ?? {};
  const stats = tokens.find((token) => token.stats)?.stats ?? promptSegment?.promptStats.find(Boolean);
  return stats?.layers.length || (state.hello?.model.n_layers ?? 8);
}

/** Keep the focused row among the layers shown; the first one is in the upper half. */
export function keepRow() {
  const n = layersShown();
  if (!view.row || view.row.layer >= n) focusRow({ layer: Math.floor(n * 0.75), part: 1 });
}

/** Show another answer and follow its newest token. @param {Answer | null} answer */
export function showAnswer(answer) {
  if (view.answer === answer) return;
  const before = layersShown();
  Object.assign(values, { answer, hover: null, hoverRow: null, pinned: null });
  changed("tokens", "focus");
  if (layersShown() === before) return;
  keepRow();
  changed("size"); // of the rows
}

/**
 * Hover: focus a token (and row) while the pointer is over it; null ends it.
 *
 * @param {number | null} index
 * @param {Row | null} [row]
 */
export function point(index, row = null) {
  if (view.hover === index && same(view.hoverRow, row)) return;
  Object.assign(values, { hover: index, hoverRow: row });
  changed("focus");
}

/**
 * @param {Row | null} a
 * @param {Row | null} b
 */
const same = (a, b) => a === b || (a && b && a.layer === b.layer && a.part === b.part);

/**
 * Select a token; null follows the newest.
 *
 * @param {number | null} index
 * @param {Row | null} [row]
 */
export function pin(index, row = null) {
  Object.assign(values, { pinned: index, hover: null, hoverRow: null, ...(row && { row }) });
  changed("focus");
}

/** Follow the newest token. */
export function followNewest() {
  values.pinned = null;
  changed("focus");
}

/** Focus a row of the core sample. @param {Row} row */
export function focusRow(row) {
  Object.assign(values, { row, hoverRow: null });
  changed("focus");
}

/** Set the number of rows per layer in the core sample. @param {number} parts */
export function setParts(parts) {
  values.parts = parts;
}

/** Move the selection by `d` tokens; it may enter the prompt. @param {number} d */
export function step(d) {
  if (written() + promptLength() === 0) return;
  const now = view.pinned ?? written() - 1;
  pin(clamp(now + d, -promptLength(), Math.max(written() - 1, -1)));
}

/**
 * Move the focused row by `d` (1 is up), across the layers and the rows within them.
 *
 * @param {number} d
 */
export function stepRow(d) {
  if (!state.hello || !view.row) return;
  const last = layersShown() * view.parts - 1;
  const now = view.row.layer * view.parts + Math.min(view.row.part, view.parts - 1);
  const next = clamp(now + d, 0, last);
  focusRow({ layer: Math.floor(next / view.parts), part: next % view.parts });
}

export const metric = () => METRICS[state.metric];
