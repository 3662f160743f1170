// One column of the core: the layers of one token, from the embedding up to the output.

import { grid, rowTop } from "./grid.js";
import { scales } from "./metrics.js";
import { palette, shade } from "./palette.js";
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

/** Paint a column at `x`, `width` wide; all in device pixels, `ratio` of them to a CSS pixel. */
export function paintColumn(context, stats, x, width, ratio, y0 = 0) {
  if (!stats) return;
  const fill = (value, top, bottom) => {
    const at = onScale(value);
    if (at === null) return;
    const a = Math.round((top - y0) * ratio);
    context.fillStyle = shade(at);
    context.fillRect(x, a, width, Math.max(1, Math.round((bottom - y0) * ratio) - a));
  };
  for (let layer = 0; layer < grid.layers; layer += 1) {
    for (let part = 0; part < view.parts; part += 1)
      fill(cellValue(stats, { layer, part }), ...partEdges(layer, part));
  }
  fill(metric().edge(stats, "output"), grid.top + 1, grid.body);
  fill(metric().edge(stats, "embed"), grid.bottom - grid.cap + 1, grid.bottom - 1);
}

/** Paint the bar of a probability that stands on the core. */
export function paintProbability(context, logprob, x, width, ratio, y0 = 0) {
  const height = Math.max(1, Math.round(Math.exp(logprob) * (grid.prob - 4) * ratio));
  const inset = width > 3 * ratio ? Math.round(ratio) : 0;
  context.fillStyle = palette["ink-2"];
  context.fillRect(
    x + inset,
    Math.round((grid.top - 1 - y0) * ratio) - height,
    Math.max(1, width - 2 * inset),
    height,
  );
}
