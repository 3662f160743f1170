// One column of the core: the layers of one token, from the embedding up to the output.

import { grid, rowTop } from "./grid.js";
import { scales } from "./metrics.js";
import { palette, shadePixel } from "./palette.js";
import { state } from "./state.js";
import { metric, view } from "./view.js";

/** The number of a cell, or null: {layer, part}. */
export function cellValue(stats, { layer, part }) {
  const values = stats?.layers[layer];
  return values ? metric().value(values, Math.min(part, view.parts - 1), view.parts) : null;
}

/** Where a number lies on the scale of the metric; null while there is no scale. */
export function onScale(value) {
  const scale = scales[state.metric];
  return value === null || value === undefined || !scale ? null : scale.at(value);
}

/**
 * Top and bottom of the part of a layer's row, in CSS pixels. Rows keep one pixel of ground between
 * layers while they are high enough for it.
 */
export function partEdges(layer, part) {
  const gap = grid.row > 5 ? 1 : 0;
  const top = rowTop(layer) + gap;
  const height = (grid.row - gap) / view.parts;
  return [top + (view.parts - 1 - part) * height, top + (view.parts - part) * height];
}

/** Paints columns into the pixels of an image, for the rows and the metric of the moment. */
export class ColumnPainter {
  /** `ratio` device pixels to a CSS pixel; row 0 of the image is at `y0` of the plot. */
  constructor(ratio, y0) {
    const at = (y) => Math.round((y - y0) * ratio);
    const row = (top, bottom) => [at(top), Math.max(at(top) + 1, at(bottom))];
    this.metric = metric();
    this.scale = scales[state.metric];
    this.parts = view.parts;
    /** [top, bottom) of each part of each layer, from the bottom. */
    this.rows = Array.from({ length: grid.layers * this.parts }, (_, i) =>
      row(...partEdges(Math.floor(i / this.parts), i % this.parts)),
    );
    this.output = row(grid.top + 1, grid.body);
    this.embed = row(grid.bottom - grid.cap + 1, grid.bottom - 1);
    this.height = at(grid.bottom);
  }

  /** The column of these statistics (null: nothing) into every `stride`th pixel from `x` on. */
  paint(pixels, stride, x, stats) {
    for (let y = 0; y < this.height; y += 1) pixels[y * stride + x] = 0;
    if (!stats || !this.scale) return;
    const { metric: its, parts } = this;
    for (let i = 0; i < this.rows.length; i += 1) {
      const layer = stats.layers[Math.floor(i / parts)];
      this.#fill(pixels, stride, x, its.value(layer, i % parts, parts), this.rows[i]);
    }
    this.#fill(pixels, stride, x, its.edge(stats, "output"), this.output);
    this.#fill(pixels, stride, x, its.edge(stats, "embed"), this.embed);
  }

  #fill(pixels, stride, x, value, [top, bottom]) {
    if (value === null || value === undefined) return;
    const pixel = shadePixel(this.scale.at(value));
    for (let y = top; y < bottom; y += 1) pixels[y * stride + x] = pixel;
  }
}

/** The bars of probabilities that stand on the core, for tokens of [first, end) from `x` on. */
export function drawProbabilities(context, tokens, first, end, { x, column, gap, ratio }) {
  const foot = Math.round((grid.top - 1) * ratio);
  const most = (grid.prob - 4) * ratio;
  const inset = column - gap > 3 * ratio ? Math.round(ratio) : 0;
  const width = Math.max(1, column - gap - 2 * inset);
  context.fillStyle = palette["ink-2"];
  for (let i = first; i < end; i += 1) {
    const height = Math.max(1, Math.round(Math.exp(tokens[i].logprob) * most));
    context.fillRect(x + i * column + inset, foot - height, width, height);
  }
}
