// The layer table: the core's cross-section at the focused token, with bars on one canvas.

import { byId, el, fitCanvas, setText } from "./dom.js";
import { count } from "./format.js";
import { grid, isDense, namedEvery } from "./grid.js";
import { scales } from "./metrics.js";
import { palette } from "./palette.js";
import { on, state } from "./state.js";
import { focused, focusedRow, focusedToken, pin, point } from "./view.js";

const table = byId("ltab");
const body = byId("lrows");
const canvas = byId("bars");
/** Rows this high have room for entropy marks taller than the bars. */
const TALL_MARKS_FROM = 24;
/** Free room at the right of a cell's bar. */
const CELL_GAP = 10;
/** Cells of each row, by layer; "out" and "emb" are the ends. */
let cells = new Map();
let dense = false;
/** Where the cells are on the canvas: {boxes: [{x, width}] by column, feet: y by layer, height}. */
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

/** Rows for the model: output on top, as in the core. */
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

/** Measured once after each change of size: asking in every frame would cost a layout. */
function findPlaces() {
  const origin = canvas.getBoundingClientRect();
  const first = cells.get(0);
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

const micro = (ms) => (ms === null || ms === undefined ? "" : count(Math.round(ms * 1000)));
const norm = (value) =>
  value >= 1000
    ? value.toPrecision(2)
    : value >= 100
      ? value.toFixed(0)
      : value.toFixed(value < 10 ? 2 : 1);
const bits = (entropy) => {
  const mean = entropy.reduce((sum, v) => sum + v, 0) / entropy.length;
  return mean.toFixed(1);
};

/** ms of a layer, null when not measured. */
const layerTime = ({ attention_ms: a, mlp_ms: m }) => (a == null || m == null ? null : a + m);

function draw() {
  const token = focusedToken();
  const stats = token?.stats ?? null;
  const row = focusedRow();
  document.body.toggleAttribute("data-focus", !!token);
  for (let layer = 0; layer < (state.hello?.model.n_layers ?? 0); layer += 1) {
    const cell = cells.get(layer);
    if (!cell) return;
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
    texts.forEach((text, i) => setText(cell.parts[i], text));
    cell.row.classList.toggle("hot", !!token && row?.layer === layer);
  }
  const end = (key, i, text) => cells.get(key) && setText(cells.get(key).parts[i], text);
  end("out", 4, micro(stats?.head_ms));
  end("emb", 4, micro(stats?.embed_ms));
  end("emb", 3, stats ? norm(stats.embedding) : "");
  drawBars(stats);
  setText(
    byId("layer-line"),
    dense && stats && row ? readOut(stats.layers[row.layer], row.layer) : "",
  );
}

/** Bars at the foot of each cell; an entropy mark for each head. */
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
    const time = layerTime(s);
    bar(4, time === null || !scales.time ? null : scales.time.at(time / 2), palette.data);
  }
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

/** In a table too dense for words: the focused layer in one line. */
function readOut(s, layer) {
  const time = layerTime(s);
  const parts = [
    `attention ${(s.attention / s.residual).toFixed(2)}`,
    `MLP ${(s.mlp / s.residual).toFixed(2)}`,
    `${bits(s.entropy)} bit`,
    `norm ${norm(s.residual)}`,
  ];
  if (time !== null) parts.push(`${micro(time)} µs`);
  return `layer ${layer}: ${parts.join(", ")}`;
}
