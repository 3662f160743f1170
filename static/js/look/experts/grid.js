// Grid of layers (from bottom to top) and their experts (from left to right), with columns of figures
// beside the rows.

import { clamp } from "../../ui/dom.js";
import { label, rule } from "../shared/chart.js";

export const TOP = 18;
const FOOT = 18;
const RIGHT = 12;
const MIN_ROW = 3;
const MAX_ROW = 44;
const MIN_COLUMN = 2;
const MAX_COLUMN = 120;
/** Cells and rows of at least this size (px) have gaps. */
export const ROOMY = 6;
/** Cells at least this large (px) have a number under their colour. */
const WORDS_HIGH = 26;
const WORDS_WIDE = 34;
export const WORDS = 14;
/** Rows at least this high (px) have figures beside them. */
const NUMBERS_HIGH = 13;
const BAR = 4;
const BESIDE_FROM = 480;
const BAR_WIDE = 48;
const NUMBER_WIDE = 32;
const GAP = 14;

/** Smallest height of a grid. @param {number} nLayers */
export const heightOf = (nLayers) => TOP + FOOT + MIN_ROW * nLayers;

/** Smallest width of a grid. @param {number} n @param {number} left */
export const broadOf = (n, left) => left + MIN_COLUMN * n + RIGHT;

/**
 * Return the layout in CSS pixels: `x(expert)` left edge of a cell, `y(layer)` top of a row; `wide`
 * and `high` size of a cell's colour; `beside` the columns that fit.
 *
 * @param {number} width
 * @param {number} height
 * @param {number} left
 * @param {{n: number, nLayers: number}} model
 * @template T
 * @param {GridColumn<T>[]} columns beside the rows, omitted in narrow grids
 * @returns {GridPlaces<T>}
 */
export function layOut(width, height, left, { n, nLayers }, columns) {
  const row = clamp(Math.floor((height - TOP - FOOT) / nLayers), MIN_ROW, MAX_ROW);
  const beside = width >= BESIDE_FROM ? columns : [];
  const numbered = row >= NUMBERS_HIGH;
  const pitch = GAP + BAR_WIDE + (numbered ? NUMBER_WIDE : 0);
  const taken = beside.length * pitch + RIGHT;
  const column = clamp((width - left - taken) / n, MIN_COLUMN, MAX_COLUMN);
  const worded = row >= WORDS_HIGH && column >= WORDS_WIDE;
  const right = left + n * column;
  /** @param {number} expert */
  const x = (expert) => Math.round(left + expert * column);
  const between = column < ROOMY ? 0 : 1;
  return {
    column,
    row,
    numbered,
    worded,
    foot: TOP + nLayers * row,
    right,
    x,
    /** @param {number} layer */
    y: (layer) => TOP + (nLayers - 1 - layer) * row,
    /** @param {number} expert */
    wide: (expert) => x(expert + 1) - x(expert) - between,
    high: worded ? row - WORDS : row - (row < ROOMY ? 0 : 1),
    beside: beside.map((one, i) => ({ ...one, x: Math.round(right + GAP + i * pitch) })),
  };
}

/**
 * Draw the names of layers, experts and columns; that of layer `hot` is highlighted.
 *
 * @template T
 * @param {CanvasRenderingContext2D} context
 * @param {{n: number, nLayers: number, left: number, hot: number}} model
 * @param {GridPlaces<T>} places
 */
export function drawNames(context, { n, nLayers, left, hot }, places) {
  const { row, column, foot, x, y, beside } = places;
  const every = [1, 2, 4, 5, 10, 20].find((step) => step * row >= 14) ?? 20;
  const long = left > 60 && every === 1;
  for (let layer = 0; layer < nLayers; layer += every) {
    const on = layer === hot;
    const at = y(layer) + Math.min(row, places.high) / 2 + 1;
    /** @type {LabelStyle} */
    const style = { align: "end", colour: on ? "lamp" : "ink-3", weight: on ? 500 : 400 };
    label(context, long ? `layer ${layer}` : String(layer), left - 10, at, style);
  }
  const step = [1, 2, 4, 8, 16, 32, 64].find((each) => each * column >= 24) ?? 128;
  for (let expert = 0; expert < n; expert += step) {
    const text = expert || step * column < 52 ? String(expert) : "expert 0";
    label(context, text, x(expert) + column / 2, foot + FOOT / 2, { align: "center" });
  }
  for (const { name, x: at } of beside) label(context, name, at, TOP / 2 - 1);
}

/**
 * Label the layers that are not among `having`: they are dense.
 *
 * @template T
 * @param {CanvasRenderingContext2D} context
 * @param {{nLayers: number, having: Set<number>}} model
 * @param {GridPlaces<T>} places
 */
export function drawDense(context, { nLayers, having }, places) {
  const { x, y, high, right, numbered } = places;
  for (let layer = 0; layer < nLayers; layer += 1) {
    if (having.has(layer)) continue;
    const middle = y(layer) + high / 2;
    if (numbered) label(context, "dense, no experts", x(0), middle + 1);
    const from = numbered ? x(0) + 116 : x(0);
    if (from < right) rule(context, from, middle, right - from, 1);
  }
}

/**
 * Draw the columns beside the rows: a bar each, and a number where it fits.
 *
 * @template {{layer: number}} T
 * @param {CanvasRenderingContext2D} context
 * @param {T[]} layers
 * @param {GridPlaces<T>} places
 */
export function drawBeside(context, layers, places) {
  const { row, y, high, beside, worded, numbered } = places;
  for (const layer of layers) {
    const middle = y(layer.layer) + (worded ? row : high) / 2;
    const thick = Math.max(1, Math.min(BAR, high - 1));
    for (const { x, at, text } of beside) {
      rule(context, x, middle - thick / 2, BAR_WIDE, thick, "line");
      rule(context, x, middle - thick / 2, at(layer) * BAR_WIDE, thick, "data-2");
      if (!numbered) continue;
      const end = x + BAR_WIDE + NUMBER_WIDE;
      label(context, text(layer), end, middle + 1, { align: "end", colour: "ink-2" });
    }
  }
}
