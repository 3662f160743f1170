// Arithmetic of vectors, and rows of the arrays of an answer.

/** @typedef {Float32Array | Uint32Array | number[]} Vector */
/** @typedef {FrameAnswer["arrays"]} Arrays */

const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

/** A number of a vector. @param {number} value */
export const number = (value) => short.format(value).replace("-", "−");

/** Length of a vector. @param {Vector} x */
export function norm(x) {
  let sum = 0;
  for (const value of x) sum += value * value;
  return Math.sqrt(sum);
}

/** Cosine of the angle between two vectors; 0 where one has no length. @param {Vector} a @param {Vector} b */
export function cosine(a, b) {
  const lengths = norm(a) * norm(b);
  return lengths ? products(a, b).reduce((sum, value) => sum + value, 0) / lengths : 0;
}

/** @param {Vector} a @param {Vector} b */
export const products = (a, b) => Array.from(a, (value, i) => value * b[i]);

/** @param {Vector} a @param {Vector} b */
export const minus = (a, b) => Float32Array.from(a, (value, i) => value - b[i]);

/** Smallest and largest number, and the length. @param {Vector} x */
export function extent(x) {
  let min = Infinity;
  let max = -Infinity;
  for (const value of x) {
    if (value < min) min = value;
    if (value > max) max = value;
  }
  return { min, max, norm: norm(x) };
}

/** Numbers of the `n` entries with the largest magnitude, largest first. @param {Vector} x @param {number} n */
export const largest = (x, n) =>
  Array.from(x, (_, i) => i)
    .sort((a, b) => Math.abs(x[b]) - Math.abs(x[a]))
    .slice(0, n);

/**
 * Row `at` of a two-dimensional array; null if the answer has no such array.
 *
 * @param {Arrays} arrays
 * @param {string} name
 * @param {number} at
 */
export function rowOf(arrays, name, at) {
  const array = arrays[name];
  if (!array) return null;
  const [, width] = array.shape;
  return array.values.subarray(at * width, (at + 1) * width);
}
