// @ts-nocheck
// Layer table: the measurements of every layer at the focused token, with bars on one canvas.

import { byId, el, fitCanvas, setText } from "../ui/dom.js";
import { grid, isDense, namedEvery } from "../core-sample/grid.js";
import { drawFoot, micro } from "./layer-detail.js";
import { figure } from "../ui/format.js";
import { scales } from "../turns/metrics.js";
import { palette } from "../ui/palette.js";
import { on, state } from "../state.js";
import { focused, focusedRow, focusedToken, pin, point } from "../view.js";

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

/** Cells of each row by layer; "out" and "emb" are the first and last row. */
let cells = new Map();
let dense = false;
/** The layer whose hidden numbers are updated next. */
let unseen = 0;
/** Positions on the canvas: {boxes: [{x, width}] by column, feet: y by layer, height}. */
let places = null;

export function setUpLayers() {
  on("hello size", build);
  on("focus tokens hello size theme", draw);
  body.addEventListener("pointerover", ({ target }) => onPoint(target, point));
  body.addEventListener("pointerleave", () => point(null));
  body.addEventListener("click", ({ target }) => onPoint(target, pin));
  new ResizeObserver(() => {
    places = null;
    draw();
  }).observe(byId("ltab-box"));
}

function onPoint(target, act) {
  const layer = target.closest("tr")?.dataset.layer;
  if (layer === undefined || !focusedToken()) return;
  act(focused(), { layer: Number(layer), part: 0 });
}

/** Build the model's rows, output on top as in the core sample. */
function build() {
  const n = state.hello?.model.n_layers ?? 8;
  const rowHeight = () => body.rows[1]?.offsetHeight ?? grid.row;
  cells = new Map();
  const every = namedEvery();
  const line = (name, key, className) => {
    const row = el("tr", className);
    const head = el("th");
    head.scope = "row";
    head.append(el("span", "", name));
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
    const row = line(String(layer), layer, layer % every === 0 ? "named" : "");
    row.dataset.layer = layer;
    return row;
  }).reverse();
  body.replaceChildren(line("out", "out", "end"), ...layers, line("emb", "emb", "end"));
  dense = isDense(rowHeight());
  table.classList.toggle("dense", dense);
  places = null;
}

/** Measure the cells once per change of size: measuring in every frame would force a layout. */
function findPlaces() {
  const origin = canvas.getBoundingClientRect();
  const first = cells.get(0) ?? cells.get("out"); // an upstream server tells of no layers
  const boxes = first.parts.map((part) => {
    const box = part.parentElement.getBoundingClientRect();
    return { x: box.left - origin.left, width: box.width - CELL_GAP };
  });
  const feet = Array.from(
    { length: cells.size - 2 },
    (_, layer) => cells.get(layer).row.getBoundingClientRect().bottom - origin.top,
  );
  return { boxes, feet, height: first.row.offsetHeight };
}

const norm = (value) => (value >= 1e6 ? value.toPrecision(2) : figure(value));
const bits = (entropy) => {
  const mean = entropy.reduce((sum, v) => sum + v, 0) / entropy.length;
  return mean.toFixed(1);
};

/** Time of a layer (ms), null when not measured. */
const layerTime = ({ attention_ms: a, mlp_ms: m }) => (a == null || m == null ? null : a + m);

function draw() {
  const token = focusedToken();
  const stats = token?.stats ?? null;
  const row = focusedRow();
  document.body.toggleAttribute("data-focus", !!token);
  for (const [layer, cell] of cells)
    cell.row.classList.toggle("hot", !!token && row?.layer === layer);
  for (const layer of layersDue(cells.size - 2)) drawNumbers(layer, stats);
  const end = (key, i, text) => cells.get(key) && setText(cells.get(key).parts[i], text);
  end("out", 4, micro(stats?.head_ms));
  end("emb", 4, micro(stats?.embed_ms));
  end("emb", 3, stats ? norm(stats.embedding) : "");
  drawBars(stats);
  drawFoot(row ? stats : null, row?.layer);
}

/**
 * Return the layers whose numbers are updated now. In dense rows the numbers are for screen readers
 * only; during generation they take turns, because updating all would dominate the frame's layout.
 */
function layersDue(n) {
  if (!dense || !state.active) return Array.from({ length: Math.max(0, n) }, (_, layer) => layer);
  const first = unseen;
  unseen = (unseen + UNSEEN_ROWS) % n;
  return Array.from({ length: Math.min(UNSEEN_ROWS, n) }, (_, i) => (first + i) % n);
}

function drawNumbers(layer, stats) {
  const s = stats?.layers[layer];
  const texts = s
    ? [
        (s.attention / s.residual).toFixed(2),
        (s.mlp / s.residual).toFixed(2),
        bits(s.entropy),
        norm(s.residual),
        micro(layerTime(s)),
      ]
    : ["", "", "", "", ""];
  texts.forEach((text, i) => setText(cells.get(layer).parts[i], text));
}

/** Draw a bar at the foot of each cell, and an entropy mark for each head. */
function drawBars(stats) {
  const [context, width] = fitCanvas(canvas);
  if (!stats || !width || cells.size - 2 !== stats.layers.length) return;
  places ??= findPlaces();
  const { boxes, feet, height: row } = places;
  const height = dense ? Math.max(1, row - 3) : 3;
  for (const [layer, s] of stats.layers.entries()) {
    const top = feet[layer] - (dense ? 1 : 3) - height;
    const bar = (i, at, colour) => {
      context.fillStyle = colour;
      if (at !== null) context.fillRect(boxes[i].x, top, Math.max(1, at * boxes[i].width), height);
    };
    bar(0, scales.update.at(s.attention / s.residual), palette.data);
    bar(1, scales.update.at(s.mlp / s.residual), palette["data-2"]);
    drawEntropy(context, s.entropy, boxes[2], top, height, row);
    bar(3, scales.norm?.at(s.residual) ?? null, palette["data-2"]);
    drawTimes(context, s, boxes[4], top, height);
    if (dense) continue;
    const middle = feet[layer] - row + (row - 9) / 2;
    drawNeedle(context, s.attention_cosine, boxes[0], middle);
    drawNeedle(context, s.mlp_cosine, boxes[1], middle);
  }
}

/** Draw attention time then MLP time, on the scale of the core sample. */
function drawTimes(context, layer, { x, width }, top, height) {
  const time = layerTime(layer);
  if (time === null || !scales.time) return;
  const all = Math.max(1, scales.time.at(time / 2) * width);
  const attention = all * (layer.attention_ms / (time || 1));
  context.fillStyle = palette.data;
  context.fillRect(x, top, attention, height);
  context.fillStyle = palette["data-2"];
  context.fillRect(x + attention, top, all - attention, height);
}

/** Draw the angle between update and residual stream: right along it, left against it. */
function drawNeedle(context, cosine, { x, width }, y) {
  if (cosine === undefined || width < 5 * NEEDLE) return;
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

function drawEntropy(context, entropy, { x, width }, top, height, row) {
  const tall = row < TALL_MARKS_FROM ? height : height + 3;
  context.fillStyle = palette.line;
  if (!dense) context.fillRect(x, top + height - 1, width, 1);
  context.fillStyle = palette.data;
  context.globalAlpha = entropy.length > 12 ? 0.6 : 0.85;
  for (const value of entropy) {
    context.fillRect(x + scales.entropy.at(value) * (width - 2), top + height - tall, 2, tall);
  }
  context.globalAlpha = 1;
}
