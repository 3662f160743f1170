// Canvas drawing of the tree of texts: one line per text, tokens from left to right.

import { contextOf, setVars } from "../../ui/dom.js";
import { probability, tokenLabel } from "../../ui/format.js";
import { grid } from "../../core-sample/grid.js";
import { palette } from "../../ui/palette.js";
import { label, rule, SANS, SERIF } from "../shared/chart.js";

/**
 * @typedef {Pick<TreeTexts, "texts" | "names" | "each" | "shown" | "focus"> &
 *   {scale: TreeScale, hot: number | null}} Drawing
 */

/** Height of a line, and the heights of its words, its edge and its figures within it. */
export const ROW = 42;
const WORDS = 12;
const TRACK = 24;
const FIGURES = 35;
const LEFT = 24;
const END = 12;
/** Distance between an edge's start and its words. */
const AFTER = 4;
/** Space beside a word in a column of its own, and its minimum width for a probability. */
const BESIDE = 14;
const MIN_COLUMN = 40;

/**
 * Draw a tree (look/branches/tree.js). `view`:
 *   texts    lists of tokens {text, logprob, put}
 *   names    labels of the lines
 *   scale    `evenScale` or `wordScale`
 *   each     draw every token with its probability, or only the first of each edge?
 *   shown    number of the text in the core sample, or null; `focus`: its focused token
 *   hot      number of the hovered text, or null
 *
 * @param {HTMLCanvasElement} canvas
 * @param {TextTree} tree
 * @param {Drawing} view
 */
export function drawTree(canvas, tree, view) {
  const context = fit(canvas, view.scale.width, tree.rows.length * ROW);
  tree.rows.forEach((leaf, row) => drawName(context, view, leaf, row));
  // Highlighted edges are drawn on top.
  /** @param {TreeEdge} edge */
  const looked = ({ leaves }) => leaves.some((leaf) => leaf === view.hot || leaf === view.shown);
  const plain = tree.nodes.filter((each) => !looked(each));
  for (const node of plain) drawEdge(context, node, view, "data-2");
  for (const node of tree.nodes.filter(looked)) drawEdge(context, node, view, colourOf(node, view));
  drawFocus(context, tree, view);
}

/**
 * Size the canvas to the tree.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 */
function fit(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  setVars(canvas, { width: `${width}px`, height: `${height}px` });
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = contextOf(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** @param {TreeEdge} edge @param {Drawing} drawing @returns {PaletteName} */
const colourOf = ({ leaves }, { hot, shown }) =>
  leaves.some((leaf) => leaf === shown) && (hot === null || hot === shown) ? "lamp" : "ink";

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Drawing} drawing
 * @param {number} leaf
 * @param {number} row
 */
function drawName(context, { names, shown, scale }, leaf, row) {
  rule(context, 0, (row + 1) * ROW - 1, scale.width, 1);
  /** @type {LabelStyle} */
  const style = leaf === shown ? { colour: "lamp", weight: 600 } : {};
  label(context, names[leaf], LEFT, row * ROW + TRACK, style);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {TreeEdge} node
 * @param {Drawing} view
 * @param {PaletteName} colour
 */
function drawEdge(context, node, view, colour) {
  const { x } = view.scale;
  const { from, to, row, parent, leaves } = node;
  const y = row * ROW + TRACK;
  if (parent && parent.row !== row) {
    const top = parent.row * ROW + TRACK;
    rule(context, x(from) - 1, top, 2, y - top + 1, colour);
  }
  if (to > from) rule(context, x(from) - 1, y - 1, x(to) - x(from), 2, colour);
  else if (parent) rule(context, x(from) - 1, y - 1, END, 2, colour);
  const tokens = view.texts[leaves[0]].slice(from, to);
  const strong = colour !== "data-2";
  if (view.each) tokens.forEach((token, i) => drawToken(context, view, from + i, token, y, strong));
  else drawWords(context, tokens, { left: x(from), right: x(to), y, strong, parts: !!parent });
  for (const [i, { put }] of tokens.entries())
    if (put) rule(context, x(from + i), y - 7, 1.5, 14, "ink");
}

/**
 * Draw a token in a column of its own, above its probability.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Drawing} drawing
 * @param {number} at
 * @param {BranchToken} token
 * @param {number} y
 * @param {boolean} strong
 */
function drawToken(context, { scale: { x } }, at, { text, eos, logprob }, y, strong) {
  context.font = `400 ${grid.words + 3}px ${SERIF}`;
  context.fillStyle = palette[strong ? "ink" : "ink-2"];
  context.textBaseline = "middle";
  const word = fitted(context, eos ? "end" : tokenLabel(text, "·"), x(at + 1) - x(at) - AFTER);
  context.fillText(word, x(at) + AFTER, y - TRACK + WORDS);
  label(context, probability(Math.exp(logprob)), x(at) + AFTER, y - TRACK + FIGURES);
}

/**
 * Draw as many words of an edge as fit; its first token stands out, with its probability.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {BranchToken[]} tokens
 * @param {{left: number, right: number, y: number, strong: boolean, parts: boolean}} place
 */
function drawWords(context, tokens, { left, right, y, strong, parts }) {
  const room = right - left - 6;
  if (!tokens.length || room < 8) return;
  let at = left + AFTER;
  /** @param {string} text @param {number} weight */
  const put = (text, weight) => {
    context.font = `${weight} ${grid.words + 2}px ${SERIF}`;
    context.fillStyle = palette[strong ? "ink" : "ink-2"];
    context.textBaseline = "middle";
    const shown = fitted(context, text, left + room - at);
    context.fillText(shown, at, y - TRACK + WORDS);
    at += context.measureText(shown).width;
    return shown === text;
  };
  const [first, ...rest] = tokens;
  const one = first.eos ? "end of text" : first.text.replaceAll("\n", "↵").trimStart() || "·";
  if (parts) drawFigure(context, first, left + AFTER, y - TRACK + FIGURES, room);
  if (!put(one, parts ? 650 : 400)) return;
  put(rest.map(({ text }) => text.replaceAll("\n", " ")).join(""), 400);
}

/**
 * Draw a token's probability if it fits.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {BranchToken} token
 * @param {number} x
 * @param {number} y
 * @param {number} room
 */
function drawFigure(context, { logprob }, x, y, room) {
  const p = Number.isFinite(logprob) ? probability(Math.exp(logprob)) : "?";
  context.font = `400 ${grid.small}px ${SANS}`;
  const fits = [`p ${p}`, p].find((text) => context.measureText(text).width <= room);
  if (fits) label(context, fits, x, y);
}

/**
 * Shorten a text to fit, with an ellipsis.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} room
 */
function fitted(context, text, room) {
  if (room <= 0) return "";
  let shown = text.length > 400 ? text.slice(0, 400) : text;
  if (shown === text && context.measureText(text).width <= room) return text;
  let [low, high] = [0, shown.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${shown.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  shown = shown.slice(0, low).trimEnd();
  return shown ? `${shown}…` : "";
}

/** @param {CanvasRenderingContext2D} context @param {TextTree} tree @param {Drawing} drawing */
function drawFocus(context, { nodes }, { scale: { x }, shown, focus }) {
  if (shown === null || focus === null || focus < 0) return;
  /** @param {TreeEdge} edge */
  const isFocused = ({ from, to, leaves }) =>
    from <= focus && focus < to && leaves.includes(shown);
  const node = nodes.find(isFocused);
  if (!node) return;
  rule(context, (x(focus) + x(focus + 1)) / 2 - 1, node.row * ROW + TRACK - 8, 2, 17, "lamp");
}

// ---- scales ----------------------------------------------------------------------------------

/**
 * Scale with equal widths for all tokens, fitting all into `room`.
 *
 * @param {number} nTokens
 * @param {number} room
 * @returns {TreeScale}
 */
export function evenScale(nTokens, room) {
  const left = leftOf(room);
  const each = (room - left - END) / Math.max(1, nTokens);
  /** @param {number} px */
  const at = (px) => Math.floor((px - left) / each);
  return { width: room, /** @param {number} index */ x: (index) => left + index * each, at };
}

/**
 * Scale with each column as wide as its widest word; may exceed `room`.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {BranchToken[][]} texts
 * @param {number} room
 * @returns {TreeScale}
 */
export function wordScale(canvas, texts, room) {
  const context = contextOf(canvas);
  const left = leftOf(room);
  const starts = [left];
  context.font = `400 ${grid.words + 3}px ${SERIF}`;
  const most = Math.max(0, ...texts.map(({ length }) => length));
  for (let at = 0; at < most; at += 1) {
    const words = texts.map((text) => (text[at] ? tokenLabel(text[at].text, "·") : ""));
    const widest = Math.max(...words.map((word) => context.measureText(word).width));
    starts.push(starts[at] + Math.max(MIN_COLUMN, Math.ceil(widest) + BESIDE));
  }
  const width = Math.max(room, starts[most] + END);
  /** @param {number} px */
  const at = (px) => starts.findLastIndex((start) => start <= px);
  return { width, /** @param {number} index */ x: (index) => starts[index], at };
}

/** Left edge of the tree: the gutter shared by all panels. @param {number} room */
const leftOf = (room) => {
  if (room < 500) return 72;
  return parseFloat(getComputedStyle(document.body).getPropertyValue("--gutter"));
};
