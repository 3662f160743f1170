// Layer table: the measurements of every layer at the focused token, with bars on one canvas.

import { byId, el, fitCanvas, setText, targetOf } from "../ui/dom.js";
import { grid, isDense, isNamed } from "../core-sample/grid.js";
import { newTerm } from "../glossary/terms.js";
import { drawFoot, micro } from "./layer-detail.js";
import { figure } from "../ui/format.js";
import { METRICS, scales } from "../turns/metrics.js";
import { palette } from "../ui/palette.js";
import { on, state } from "../state.js";
import { focused, focusedRow, focusedToken, layersShown, pin, point } from "../view.js";

/** @typedef {{x: number, width: number}} Box */
/** @typedef {number | "out" | "emb"} RowName */
/** @typedef {{row: HTMLTableRowElement, parts: HTMLElement[]}} Cells */

const table = byId("ltab");
const body = byId("lrows");
const canvas = byId("bars");
/** Rows at least this high (px) have entropy marks taller than the bars. */
const TALL_MARKS_FROM = 24;
/** Free space right of a cell's bar (px). */
const CELL_GAP = 10;
/** Length of a cosine needle (px); it is centred in twice that. */
const NEEDLE = 9;
/** Number of hidden rows updated per frame. */
const UNSEEN_ROWS = 3;

/** Cells of each row by layer; "out" and "emb" are the first and last row. @type {Map<RowName, Cells>} */
let cells = new Map();
let dense = false;
/** The layer whose hidden numbers are updated next. */
let unseen = 0;
/**
 * Positions on the canvas: {boxes: [{x, width}] by column, feet: y by layer, height}.
 *
 * @type {{boxes: Box[], feet: number[], height: number} | null}
 */
let places = null;

export function setUpLayers() {
  on("hello size", build);
  on("focus tokens hello size theme", draw);
  body.addEventListener("pointerover", (event) => onPoint(event, point));
  body.addEventListener("pointerleave", () => point(null));
  body.addEventListener("click", (event) => onPoint(event, pin));
  new ResizeObserver(() => {
    places = null;
    draw();
  }).observe(byId("ltab-box"));
}

/** @param {Event} event @param {(index: number | null, row: Row) => void} act */
function onPoint(event, act) {
  const layer = targetOf(event).closest("tr")?.dataset.layer;
  if (layer === undefined || !focusedToken()) return;
  act(focused(), { layer: Number(layer), part: 0 });
}

/** Build a row for every layer shown, output on top as in the core sample. */
function build() {
  const n = layersShown();
  const rowHeight = () => body.rows[1]?.offsetHeight ?? grid.row;
  cells = new Map();
  /**
   * @param {string} name
   * @param {RowName} key
   * @param {string} className
   * @param {string} [matrix]  name in papers of the matrix that makes it
   */
  const line = (name, key, className, matrix) => {
    const row = el("tr", className);
    const head = el("th");
    head.scope = "row";
    head.appendChild(el("span")).append(matrix ? newTerm(name, matrix) : name);
    if (matrix) head.title = matrix;
    const parts = Array.from({ length: 5 }, () => el("span"));
    row.append(
      head,
      ...parts.map((part) => {
        const cell = el("td");
        cell.append(part);
        return cell;
      }),
    );
    cells.set(key, { row, parts });
    return row;
  };
  const layers = Array.from({ length: n }, (_, layer) => {
    const row = line(String(layer), layer, isNamed(layer) ? "named" : "");
    row.dataset.layer = String(layer);
    return row;
  }).reverse();
  body.replaceChildren(line("out", "out", "end", "W_unembed"), ...layers, line("emb", "emb", "end", "W_E"));
  dense = isDense(rowHeight());
  table.classList.toggle("dense", dense);
  if (dense) for (const row of layers) leaveToScreenReaders(row);
  places = null;
}

/** Hide the words of a dense row, but for the number of every few layers. @param {HTMLElement} row */
function leaveToScreenReaders(row) {
  const spans = row.querySelectorAll(row.classList.contains("named") ? "td span" : "span");
  for (const span of spans) span.classList.add("vh");
}

/** Measure the cells once per change of size: measuring in every frame would force a layout. */
function findPlaces() {
  const origin = canvas.getBoundingClientRect();
  const layers = [...cells].filter(([name]) => typeof name === "number");
  const rows = layers.sort(([a], [b]) => Number(a) - Number(b)).map(([, { row }]) => row);
  const first = rows[0] ?? body.rows[0]; // an upstream server tells of no layers
  const boxes = [...first.cells].slice(1).map((cell) => {
    const box = cell.getBoundingClientRect();
    const margin = parseFloat(getComputedStyle(cell).paddingInlineEnd); // of the last one
    return { x: box.left - origin.left, width: box.width - margin - CELL_GAP };
  });
  const feet = rows.map((row) => row.getBoundingClientRect().bottom - origin.top);
  return { boxes, feet, height: first.offsetHeight };
}

/** @param {number | null} value */
const norm = (value) => ((value ?? 0) >= 1e6 ? (value ?? 0).toPrecision(2) : figure(value ?? NaN));
/** @param {(number | null)[]} entropy */
const bits = (entropy) => {
  const mean = entropy.reduce((/** @type {number} */ sum, v) => sum + (v ?? 0), 0) / entropy.length;
  return mean.toFixed(1);
};

/** @param {number | null} value */
const written = (value) => value?.toFixed(2) ?? "";

/**
 * Position of a value on its scale, null if either is unknown.
 *
 * @param {typeof scales.norm} scale
 * @param {number | null} value
 */
const place = (scale, value) => (value === null ? null : (scale?.at(value) ?? null));

/** Time of a layer (ms), null when not measured. @param {ToPage.LayerStats} layer */
const layerTime = ({ attention_ms: a, mlp_ms: m }) => (a == null || m == null ? null : a + m);

function draw() {
  const token = focusedToken();
  const stats = token?.stats ?? null;
  const row = focusedRow();
  document.body.toggleAttribute("data-focus", !!token);
  for (const [layer, cell] of cells)
    cell.row.classList.toggle("hot", !!token && row?.layer === layer);
  for (const layer of layersDue(cells.size - 2)) drawNumbers(layer, stats);
  /** @param {RowName} key @param {number} i @param {string} text */
  const end = (key, i, text) => {
    const parts = cells.get(key)?.parts;
    if (parts) setText(parts[i], text);
  };
  end("out", 4, micro(stats?.head_ms));
  end("emb", 4, micro(stats?.embed_ms));
  end("emb", 3, stats ? norm(stats.embedding) : "");
  drawBars(stats);
  drawFoot(row ? stats : null, row?.layer ?? 0);
}

/**
 * Return the layers whose numbers are updated now. In dense rows the numbers are for screen readers
 * only; during generation they take turns, because updating all would dominate the frame's layout.
 *
 * @param {number} n
 */
function layersDue(n) {
  if (!dense || !state.active) return Array.from({ length: Math.max(0, n) }, (_, layer) => layer);
  const first = unseen;
  unseen = (unseen + UNSEEN_ROWS) % n;
  return Array.from({ length: Math.min(UNSEEN_ROWS, n) }, (_, i) => (first + i) % n);
}

/** @param {number} layer @param {Stats | null} stats */
function drawNumbers(layer, stats) {
  const s = stats?.layers[layer];
  const texts = s
    ? [
        written(METRICS.update.value(s, 0)),
        written(METRICS.update.value(s, 1)),
        bits(s.entropy),
        norm(s.residual),
        micro(layerTime(s)),
      ]
    : ["", "", "", "", ""];
  cells.get(layer)?.parts.forEach((part, i) => setText(part, texts[i]));
}

/** Draw a bar at the foot of each cell, and an entropy mark for each head. @param {Stats | null} stats */
function drawBars(stats) {
  const [context, width] = fitCanvas(canvas);
  if (!stats || !width || cells.size - 2 !== stats.layers.length) return;
  places ??= findPlaces();
  const { boxes, feet, height: row } = places;
  const height = dense ? Math.max(1, row - 3) : 3;
  for (const [layer, s] of stats.layers.entries()) {
    const top = feet[layer] - (dense ? 1 : 3) - height;
    /** @param {number} i @param {number | null} at @param {string} colour */
    const bar = (i, at, colour) => {
      context.fillStyle = colour;
      if (at !== null) context.fillRect(boxes[i].x, top, Math.max(1, at * boxes[i].width), height);
    };
    bar(0, place(scales.update, METRICS.update.value(s, 0)), palette.data);
    bar(1, place(scales.update, METRICS.update.value(s, 1)), palette["data-2"]);
    drawEntropy(context, s.entropy, boxes[2], top, height, row);
    bar(3, place(scales.norm, s.residual), palette["data-2"]);
    drawTimes(context, s, boxes[4], top, height);
    if (dense) continue;
    const middle = feet[layer] - row + (row - 9) / 2;
    drawNeedle(context, s.attention_cosine, boxes[0], middle);
    drawNeedle(context, s.mlp_cosine, boxes[1], middle);
  }
}

/**
 * Draw attention time then MLP time, on the scale of the core sample.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {ToPage.LayerStats} layer
 * @param {Box} box
 * @param {number} top
 * @param {number} height
 */
function drawTimes(context, layer, { x, width }, top, height) {
  const time = layerTime(layer);
  if (time === null || !scales.time) return;
  const all = Math.max(1, scales.time.at(time / 2) * width);
  const attention = all * ((layer.attention_ms ?? 0) / (time || 1));
  context.fillStyle = palette.data;
  context.fillRect(x, top, attention, height);
  context.fillStyle = palette["data-2"];
  context.fillRect(x + attention, top, all - attention, height);
}

/**
 * Draw the angle between update and residual stream: right along it, left against it.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {number | null} cosine
 * @param {Box} box
 * @param {number} y
 */
function drawNeedle(context, cosine, { x, width }, y) {
  if (cosine === null || cosine === undefined || width < 5 * NEEDLE) return;
  const [middle, foot] = [x + width - NEEDLE, Math.round(y + NEEDLE / 2)];
  context.fillStyle = palette.edge;
  context.fillRect(middle - NEEDLE, foot, 2 * NEEDLE, 1);
  context.strokeStyle = palette["ink-2"];
  context.lineWidth = 1.25;
  context.beginPath();
  context.moveTo(middle, foot + 0.5);
  context.lineTo(middle + NEEDLE * cosine, foot - NEEDLE * Math.sqrt(1 - cosine * cosine));
  context.stroke();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {(number | null)[]} entropy
 * @param {Box} box
 * @param {number} top
 * @param {number} height
 * @param {number} row
 */
function drawEntropy(context, entropy, { x, width }, top, height, row) {
  const tall = row < TALL_MARKS_FROM ? height : height + 3;
  context.fillStyle = palette.line;
  if (!dense) context.fillRect(x, top + height - 1, width, 1);
  context.fillStyle = palette.data;
  context.globalAlpha = entropy.length > 12 ? 0.6 : 0.85;
  for (const value of entropy) {
    context.fillRect(x + scales.entropy.at(value ?? 0) * (width - 2), top + height - tall, 2, tall);
  }
  context.globalAlpha = 1;
}
