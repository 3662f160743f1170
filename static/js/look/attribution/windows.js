// Windows of layers in which attention is masked, and in what order they are measured. No DOM access.

/**
 * Layers `first` … `end` − 1.
 *
 * @typedef {{first: number, end: number}} LayerRange
 */

/** Numbers of layers that a window may have. */
const WIDTHS = [1, 3, 9];

/** Widths of windows for a model; the widest leaves most of its layers alone. @param {number} nLayers */
export const widthsOf = (nLayers) => WIDTHS.filter((width) => width === 1 || 3 * width <= nLayers);

/**
 * Return a window around every layer; those at the ends have fewer layers (Geva et al. 2023).
 *
 * @param {number} nLayers
 * @param {number} width odd
 * @returns {LayerRange[]}
 */
export function windowsOf(nLayers, width) {
  const half = (width - 1) / 2;
  return Array.from({ length: nLayers }, (_, layer) => ({
    first: Math.max(0, layer - half),
    end: Math.min(nLayers, layer + half + 1),
  }));
}

/**
 * Return 0 … n − 1 in an order whose first numbers are spread over the whole range, so that a picture can be
 * read before it is complete.
 *
 * @param {number} n
 */
export function spread(n) {
  const bits = Math.ceil(Math.log2(Math.max(2, n)));
  return Array.from({ length: 2 ** bits }, (_, i) => reversed(i, bits)).filter((i) => i < n);
}

/** @param {number} number @param {number} bits */
function reversed(number, bits) {
  let result = 0;
  for (let bit = 0; bit < bits; bit += 1) if (number & (1 << bit)) result |= 1 << (bits - 1 - bit);
  return result;
}

/** In words, counted as everywhere from 0. @param {LayerRange | null} range null: all layers */
export function rangeWords(range) {
  if (!range) return "all layers";
  const last = range.end - 1;
  return range.first === last ? `layer ${last}` : `layers ${range.first} to ${last}`;
}
