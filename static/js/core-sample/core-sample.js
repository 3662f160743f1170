// Heat map of layers × tokens (the core sample): position of its columns, scrolling, and drawing.

import { ColumnPainter, drawProbabilities, partEdges } from "./column.js";
import { drawLabels, drawPaper } from "./labels.js";
import { byId, clamp, contextOf, setText, setVars } from "../ui/dom.js";
import { grid, rowTop } from "./grid.js";
import { tokenLabel } from "../ui/format.js";
import { on, state } from "../state.js";
import { ColumnCache } from "./column-cache.js";
import {
  focused,
  focusedRow,
  focusedToken,
  metric,
  numberOf,
  promptLength,
  setParts,
  view,
  written,
} from "../view.js";

const WIDTHS = [1, 2, 3, 4, 6, 8, 10, 12, 16, 20];
const PROMPT_GAP = 10;
const MARGIN_COLUMNS = 6;
/** Share of the plot that becomes blank again when the newest column reaches the edge. */
const JUMP = 0.3;

const plot = byId("plot");
const strip = byId("core-strip");
const pane = byId("pane");
const canvas = byId("sample");

/**
 * Sizes in CSS pixels; `x0` is the first generated token's column, from the left edge of the strip.
 */
export const core = {
  width: 0,
  height: 0,
  stripWidth: 0,
  ratio: 1,
  wanted: 6,
  column: 6,
  prompt: 3,
  x0: 0,
  scroll: 0,
  scrolledAway: false,
};

/**
 * What the column caches were painted for.
 *
 * @type {{answer: Answer | null, edition: number, prompt: number}}
 */
let drawn = { answer: null, edition: 0, prompt: 0 };
let programmaticScroll = -1;

/** @type {ColumnPainter | null} */
let painter = null;
const tokenColumns = new ColumnCache((pixels, stride, x, i) =>
  painter?.paint(pixels, stride, x, view.answer?.tokens[i].stats ?? null),
);
const promptColumns = new ColumnCache((pixels, stride, x, i) =>
  painter?.paint(pixels, stride, x, view.answer?.promptSegment.promptStats[i] ?? null),
);

export function setUpCore() {
  core.wanted = innerWidth < 768 ? 4 : innerWidth < 1700 ? 6 : innerWidth < 2400 ? 8 : 12;
  on("size theme metric hello", () => resetCore());
  on("tokens focus size theme metric hello turns", drawCore);
  plot.addEventListener("scroll", onScroll, { passive: true });
  new ResizeObserver(() => {
    resetCore();
    drawCore();
  }).observe(plot);
}

/** @param {number} d */
export function zoom(d) {
  const now = WIDTHS.findIndex((w) => w >= core.wanted);
  core.wanted = WIDTHS[clamp(now + d, 0, WIDTHS.length - 1)];
  measure();
  drawCore();
}

/** Follow the newest column again. */
export function follow() {
  core.scrolledAway = false;
  drawCore();
}

/** Repaint every column after rows, colours or metric changed. */
function resetCore() {
  measure();
  setParts(state.hello ? metric().parts(state.hello.model, grid.row) : 2);
  painter = new ColumnPainter(core.ratio, grid.flag + grid.text);
  tokenColumns.reset(painter.height);
  promptColumns.reset(painter.height);
}

function measure() {
  core.ratio = devicePixelRatio || 1;
  core.width = plot.clientWidth;
  core.height = pane.clientHeight;
  core.scroll = plot.scrollLeft;
  core.column = Math.max(1, Math.round(core.wanted * core.ratio)) / core.ratio;
  core.prompt = Math.max(1, Math.round(promptWidth() * core.ratio)) / core.ratio;
  setVars(pane, { "--pane-w": `${core.width}px` });
}

/** Width of prompt columns: narrow, and narrower for a long prompt. */
function promptWidth() {
  if (promptLength() > 1200) return 1;
  return promptLength() > 400 || core.width < 500 ? 2 : 3;
}

/** Number of prompt columns that can be painted: statistics arrive in order. */
const promptDone = () => view.answer?.promptSegment?.promptDone ?? 0;

function drawCore() {
  if (!core.width) return;
  const { answer } = view;
  const now = { answer, edition: answer?.edition ?? 0, prompt: promptLength() };
  if (answer !== drawn.answer) core.scrolledAway = false;
  const { edition, prompt } = drawn;
  if (answer !== drawn.answer || now.edition !== edition || now.prompt !== prompt) {
    drawn = now;
    resetCore();
  }
  const n = answer?.tokens.length ?? 0;
  const nPrompt = promptLength();
  core.x0 = nPrompt ? nPrompt * core.prompt + PROMPT_GAP : 0;
  placeScroll(n);
  paint(n, nPrompt);
  placeFocus(n);
}

/** Scroll to the selected column, else to the newest. @param {number} n */
function placeScroll(n) {
  const { width, column } = core;
  const head = writeHeadX(n);
  const minimum = Math.max(width, head + MARGIN_COLUMNS * column);
  const wanted = Math.ceil(Math.max(width, head + width * JUMP));
  if (core.stripWidth < minimum || core.stripWidth > wanted) {
    core.stripWidth = wanted;
    strip.style.width = `${wanted}px`;
  }
  let { scroll } = core;
  if (view.hover === null && !core.scrolledAway) {
    const target = view.pinned === null ? head : columnOf(focused() ?? 0).x;
    if (target + MARGIN_COLUMNS * column > scroll + width) scroll = target - width * (1 - JUMP);
    else if (target - column < scroll) scroll = target - width * JUMP;
  }
  scroll = Math.round(clamp(scroll, 0, core.stripWidth - width));
  if (scroll === core.scroll) return;
  core.scroll = programmaticScroll = scroll;
  plot.scrollLeft = scroll;
}

function onScroll() {
  const { scrollLeft } = plot;
  if (Math.abs(scrollLeft - programmaticScroll) < 1) return;
  programmaticScroll = -1;
  core.scroll = scrollLeft;
  const n = view.answer?.tokens.length ?? 0;
  const head = writeHeadX(n);
  core.scrolledAway = head > scrollLeft + core.width || head < scrollLeft || view.pinned !== null;
  drawCore();
  byId("follow").setAttribute("aria-pressed", String(!core.scrolledAway && view.pinned === null));
}

/**
 * @param {number} n
 * @param {number} nPrompt
 */
function paint(n, nPrompt) {
  const { ratio, width, height } = core;
  const w = Math.round(width * ratio);
  const h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = contextOf(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  drawPaper(context, core, n);
  context.setTransform(1, 0, 0, 1, 0, 0);
  if (nPrompt) drawColumns(context, promptColumns, Math.min(promptDone(), nPrompt), 0, core.prompt);
  if (n) {
    const place = drawColumns(context, tokenColumns, n, core.x0, core.column);
    const first = Math.max(0, Math.floor(-place.x / place.column));
    const end = Math.min(n, Math.ceil((w - place.x) / place.column));
    drawProbabilities(context, view.answer?.tokens ?? [], first, end, { ...place, ratio });
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawLabels(context, core, view.answer);
}

/**
 * Draw `n` cached columns from `left` of the strip. Returns their place in device pixels.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {ColumnCache} columns
 * @param {number} n
 * @param {number} left
 * @param {number} width
 */
function drawColumns(context, columns, n, left, width) {
  const { ratio } = core;
  const column = Math.round(width * ratio);
  const place = {
    x: Math.round((left - core.scroll) * ratio),
    y: Math.round((grid.flag + grid.text) * ratio),
    right: Math.round(core.width * ratio),
    column,
    gap: columns === tokenColumns && column >= 8 * ratio ? Math.round(ratio) : 0,
  };
  columns.draw(context, n, place);
  return place;
}

/**
 * Frame the focused column and cell, and place the write head after the newest.
 *
 * @param {number} n
 */
function placeFocus(n) {
  const token = focusedToken();
  const row = focusedRow();
  const place = token ? columnOf(focused() ?? 0) : { x: 0, width: 0 };
  const x = place.x - core.scroll;
  const visible = token && x > -place.width && x < core.width;
  const vars = {
    "--on": visible ? 1 : 0,
    "--head": `${writeHeadX(n) - core.scroll + 1}px`,
  };
  if (token && row) {
    const [top, bottom] = partEdges(row.layer, Math.min(row.part, view.parts - 1));
    Object.assign(vars, {
      "--x": `${x - 1}px`,
      "--w": `${place.width + 2}px`,
      "--y": `${Math.round(top) - 1}px`,
      "--h": `${Math.max(4, Math.round(bottom - top) + 2)}px`,
    });
    setText(byId("hair-n"), numberOf(token));
    setText(byId("hair-word"), tokenLabel(token.text, token.prompt === undefined && token.eos ? "end" : "·"));
  }
  setVars(pane, vars);
}

/**
 * x of the next column: after the newest token, or within the prompt during prefill.
 *
 * @param {number} n
 */
const writeHeadX = (n) => (n ? core.x0 + n * core.column : promptDone() * core.prompt);

/** Place of a token's column on the strip: {x, width}. @param {number} index */
function columnOf(index) {
  if (index >= 0) return { x: core.x0 + index * core.column, width: core.column };
  return { x: (promptLength() + index) * core.prompt, width: core.prompt };
}

/** Number of the token at `x` of the strip, or null. @param {number} x */
function indexAt(x) {
  if (x >= core.x0) {
    const index = Math.floor((x - core.x0) / core.column);
    return index < written() ? index : null;
  }
  const index = Math.floor(x / core.prompt) - promptLength();
  return index < 0 ? index : null;
}

/** The token and row under a point of the plot, or null. @param {MouseEvent} event */
export function cellUnder(event) {
  const box = pane.getBoundingClientRect();
  const index = indexAt(event.clientX - box.left + core.scroll);
  const y = event.clientY - box.top;
  if (index === null) return null;
  const layer = grid.layers - 1 - Math.floor((y - grid.body) / grid.row);
  if (layer < 0 || layer >= grid.layers) return { index, row: null };
  const part = view.parts - 1 - Math.floor(((y - rowTop(layer)) / grid.row) * view.parts);
  return { index, row: { layer, part: clamp(part, 0, view.parts - 1) } };
}
