// One column of the core sample: the layers of one token, from the embedding up to the output.

import { grid, rowTop } from "./grid.js";
import { scales } from "../turns/metrics.js";
import { palette, shadePixel } from "../ui/palette.js";
import { state } from "../state.js";
import { metric, view } from "../view.js";

/**
 * Value of a cell {layer, part}, or null.
 *
 * @param {Stats | null | undefined} stats
 * @param {Row} row
 */
export function cellValue(stats, { layer, part }) {
  const values = stats?.layers[layer];
  return values ? metric().value(values, Math.min(part, view.parts - 1), view.parts) : null;
}

/**
 * Position of a value on the metric's scale, in [0, 1]; null without a scale.
 *
 * @param {number | null | undefined} value
 */
export function onScale(value) {
  const scale = scales[state.metric];
  return value === null || value === undefined || !scale ? null : scale.at(value);
}

/**
 * Return top and bottom of a part of a layer's row, in CSS pixels. Rows are one pixel apart if high
 * enough.
 *
 * @param {number} layer
 * @param {number} part
 * @returns {[number, number]}
 */
export function partEdges(layer, part) {
  const gap = grid.row > 5 ? 1 : 0;
  const top = rowTop(layer) + gap;
  const height = (grid.row - gap) / view.parts;
  return [top + (view.parts - 1 - part) * height, top + (view.parts - part) * height];
}

/** Paints columns into the pixels of an image, for the current rows and metric. */
export class ColumnPainter {
  /**
   * `ratio` device pixels per CSS pixel; row 0 of the image is at `y0` of the plot.
   *
   * @param {number} ratio
   * @param {number} y0
   */
  constructor(ratio, y0) {
    /** @param {number} y */
    const at = (y) => Math.round((y - y0) * ratio);
    /** @type {(top: number, bottom: number) => [number, number]} */
    const row = (top, bottom) => [at(top), Math.max(at(top) + 1, at(bottom))];
    this.metric = metric();
    this.scale = scales[state.metric];
    this.parts = view.parts;
    /** [top, bottom) of each part of each layer, lowest layer first. */
    this.rows = Array.from({ length: grid.layers * this.parts }, (_, i) =>
      row(...partEdges(Math.floor(i / this.parts), i % this.parts)),
    );
    this.output = row(grid.top + 1, grid.body);
    this.embed = row(grid.bottom - grid.cap + 1, grid.bottom - 1);
    this.height = at(grid.bottom);
  }

  /**
   * Paint the column of `stats` (null: blank) into every `stride`th pixel from `x`.
   *
   * @param {Uint32Array} pixels
   * @param {number} stride
   * @param {number} x
   * @param {Stats | null} stats
   */
  paint(pixels, stride, x, stats) {
    for (let y = 0; y < this.height; y += 1) pixels[y * stride + x] = 0;
    if (!stats || !this.scale) return;
    const { metric: its, parts } = this;
    for (let i = 0; i < this.rows.length; i += 1) {
      const layer = stats.layers[Math.floor(i / parts)];
      if (!layer) break; // a token of an earlier model, which had fewer layers
      this.#fill(pixels, stride, x, its.value(layer, i % parts, parts), this.rows[i]);
    }
    this.#fill(pixels, stride, x, its.edge(stats, "output"), this.output);
    this.#fill(pixels, stride, x, its.edge(stats, "embed"), this.embed);
  }

  /**
   * @param {Uint32Array} pixels
   * @param {number} stride
   * @param {number} x
   * @param {number | null | undefined} value
   * @param {[number, number]} pair
   */
  #fill(pixels, stride, x, value, [top, bottom]) {
    if (value === null || value === undefined) return;
    const pixel = shadePixel(this.scale?.at(value) ?? 0);
    for (let y = top; y < bottom; y += 1) pixels[y * stride + x] = pixel;
  }
}

/**
 * Draw the probability bars above the core sample, for tokens [first, end) from `x`.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Token[]} tokens
 * @param {number} first
 * @param {number} end
 * @param {{x: number, column: number, gap: number, ratio: number}} options
 */
export function drawProbabilities(context, tokens, first, end, { x, column, gap, ratio }) {
  const foot = Math.round((grid.top - 1) * ratio);
  const maxHeight = (grid.prob - 4) * ratio;
  const inset = column - gap > 3 * ratio ? Math.round(ratio) : 0;
  const width = Math.max(1, column - gap - 2 * inset);
  context.fillStyle = palette["ink-2"];
  for (let i = first; i < end; i += 1) {
    const height = Math.max(1, Math.round(Math.exp(tokens[i].logprob) * maxHeight));
    context.fillRect(x + i * column + inset, foot - height, width, height);
  }
}
