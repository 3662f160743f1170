// The tree of texts that begin alike, on a canvas: a line for each, tokens from left to right.

import { setVars } from "../dom.js";
import { probability, tokenLabel } from "../format.js";
import { grid } from "../grid.js";
import { palette } from "../palette.js";
import { label, rule, SANS, SERIF } from "./chart.js";

/** Height of a line; where its words, its track and its small figures lie in it. */
export const ROW = 42;
const WORDS = 12;
const TRACK = 24;
const FIGURES = 35;
const LEFT = 24;
const END = 12;
/** Words stand this far behind the line that leads to them. */
const AFTER = 4;
/** Room beside a word in a column of its own, and for a probability under it. */
const BESIDE = 14;
const LEAST_COLUMN = 40;

/**
 * Draw a tree (branchtree.js). `view`:
 *   texts    of the tree: lists of tokens {text, logprob, put}
 *   names    of the lines, before them
 *   scale    `evenScale` or `wordScale`
 *   each     is every token drawn with its probability, or only the first of each stretch?
 *   shown    number of the text that is looked at, or null; `focus`: of its focused token
 *   hot      number of the text under the hand, or null
 */
export function drawTree(canvas, tree, view) {
  const context = fit(canvas, view.scale.width, tree.rows.length * ROW);
  tree.rows.forEach((leaf, row) => drawName(context, view, leaf, row));
  // What is looked at lies over the rest.
  const looked = (node) => node.leaves.includes(view.hot) || node.leaves.includes(view.shown);
  for (const node of tree.nodes.filter((each) => !looked(each))) drawStretch(context, node, view, "data-2");
  for (const node of tree.nodes.filter(looked)) drawStretch(context, node, view, colourOf(node, view));
  drawFocus(context, tree, view);
}

/** The tree says how large its canvas is, and not the other way round. */
function fit(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  setVars(canvas, { width: `${width}px`, height: `${height}px` });
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const colourOf = ({ leaves }, { hot, shown }) => (leaves.includes(shown) && (hot === null || hot === shown) ? "lamp" : "ink");

function drawName(context, { names, shown, scale }, leaf, row) {
  rule(context, 0, (row + 1) * ROW - 1, scale.width, 1);
  const style = leaf === shown ? { colour: "lamp", weight: 600 } : {};
  label(context, names[leaf], LEFT, row * ROW + TRACK, style);
}

function drawStretch(context, node, view, colour) {
  const { x } = view.scale;
  const { from, to, row, parent, leaves } = node;
  const y = row * ROW + TRACK;
  if (parent && parent.row !== row) rule(context, x(from) - 1, parent.row * ROW + TRACK, 2, y - parent.row * ROW - TRACK + 1, colour);
  if (to > from) rule(context, x(from) - 1, y - 1, x(to) - x(from), 2, colour);
  else if (parent) rule(context, x(from) - 1, y - 1, END, 2, colour);
  const tokens = view.texts[leaves[0]].slice(from, to);
  const strong = colour !== "data-2";
  if (view.each) tokens.forEach((token, i) => drawToken(context, view, from + i, token, y, strong));
  else drawWords(context, tokens, { left: x(from), right: x(to), y, strong, parts: !!parent });
  for (const [i, { put }] of tokens.entries()) if (put) rule(context, x(from + i), y - 7, 1.5, 14, "ink");
}

/** A token in a column of its own, over its probability. */
function drawToken(context, { scale: { x } }, at, { text, eos, logprob }, y, strong) {
  context.font = `400 ${grid.words + 3}px ${SERIF}`;
  context.fillStyle = palette[strong ? "ink" : "ink-2"];
  context.textBaseline = "middle";
  const word = fitted(context, eos ? "end" : tokenLabel(text, "·"), x(at + 1) - x(at) - AFTER);
  context.fillText(word, x(at) + AFTER, y - TRACK + WORDS);
  label(context, probability(Math.exp(logprob)), x(at) + AFTER, y - TRACK + FIGURES);
}

/** As many words of a stretch as fit; the token it parts with stands out, with its probability. */
function drawWords(context, tokens, { left, right, y, strong, parts }) {
  const room = right - left - 6;
  if (!tokens.length || room < 8) return;
  let at = left + AFTER;
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
  if (put(one, parts ? 650 : 400)) put(rest.map(({ text }) => text.replaceAll("\n", " ")).join(""), 400);
}

/** The probability of a token, if it fits. */
function drawFigure(context, { logprob }, x, y, room) {
  const p = Number.isFinite(logprob) ? probability(Math.exp(logprob)) : "?";
  context.font = `400 ${grid.small}px ${SANS}`;
  const fits = [`p ${p}`, p].find((text) => context.measureText(text).width <= room);
  if (fits) label(context, fits, x, y);
}

/** The beginning of a text that fits, with … for the rest. */
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

function drawFocus(context, { nodes }, { scale: { x }, shown, focus }) {
  if (shown === null || focus === null || focus < 0) return;
  const node = nodes.find(({ from, to, leaves }) => from <= focus && focus < to && leaves.includes(shown));
  if (!node) return;
  rule(context, (x(focus) + x(focus + 1)) / 2 - 1, node.row * ROW + TRACK - 8, 2, 17, "lamp");
}

// ---- scales ----------------------------------------------------------------------------------

/** Every token takes the same room, and all of them fit into `room`. */
export function evenScale(nTokens, room) {
  const left = leftOf(room);
  const each = (room - left - END) / Math.max(1, nTokens);
  return { width: room, x: (index) => left + index * each, at: (px) => Math.floor((px - left) / each) };
}

/** Every place takes the room of its widest word; all may need more than `room`. */
export function wordScale(canvas, texts, room) {
  const context = canvas.getContext("2d");
  const left = leftOf(room);
  const starts = [left];
  context.font = `400 ${grid.words + 3}px ${SERIF}`;
  const most = Math.max(0, ...texts.map(({ length }) => length));
  for (let at = 0; at < most; at += 1) {
    const words = texts.map((text) => (text[at] ? tokenLabel(text[at].text, "·") : ""));
    const widest = Math.max(...words.map((word) => context.measureText(word).width));
    starts.push(starts[at] + Math.max(LEAST_COLUMN, Math.ceil(widest) + BESIDE));
  }
  const width = Math.max(room, starts.at(-1) + END);
  return { width, x: (index) => starts[index], at: (px) => starts.findLastIndex((start) => start <= px) };
}

/** The names of the lines stand on the gutter that the whole bench shares. */
const leftOf = (room) => (room < 500 ? 72 : parseFloat(getComputedStyle(document.body).getPropertyValue("--gutter")));
