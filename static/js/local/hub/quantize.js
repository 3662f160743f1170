// Blocks of weights as small integers with a scale, or a scale and a minimum: to the bit what
// gpu/checkpoint/quantize.py makes, whose docstrings explain it. Every sum and product is rounded to
// float32, in NumPy's order.

import { fromHalf, roundEven, toHalf } from "./numbers.js";

const f = Math.fround;
const RANGES = [1.0, 0.88].map(f);
const STARTS = [1.0, 0.88].map((part) => f(part / 7.5));
const ROUNDS = 3;
const LARGEST = 65504;
const SMALLEST_NORMAL = 2 ** -14;
const SMALLEST = 2 ** -24;
const INFINITE_HALF = 0x7c00;

/**
 * Quantise weights[at … at + width − 1] to `q` (Int8Array) from `to` on. Return the bits of the
 * scale.
 *
 * @param {Float32Array} weights
 * @param {number} at
 * @param {number} width
 * @param {Int8Array} q
 * @param {number} to
 */
export function quantizeQ8(weights, at, width, q, to) {
  let high = weights[at];
  let low = high;
  for (let i = at + 1; i < at + width; i++) {
    if (weights[i] > high) high = weights[i];
    if (weights[i] < low) low = weights[i];
  }
  const largest = Math.max(Math.abs(high), Math.abs(low));
  const scale = finiteHalf(notTooSmall(f(largest / 127)));
  const inverse = inverseOf(f(fromHalf(scale)));
  for (let i = 0; i < width; i++) q[to + i] = roundEven(f(weights[at + i] * inverse));
  return scale;
}

const w = new Float32Array(32);

/**
 * Quantise weights[at … at + width − 1] to `q` (Uint8Array, 0 … 15) from `to` on. Return the bits of
 * the scale and the minimum.
 *
 * @param {Float32Array} weights
 * @param {number} at
 * @param {number} width
 * @param {Uint8Array} q
 * @param {number} to
 */
export function quantizeQ4(weights, at, width, q, to) {
  let high = weights[at];
  let low = high;
  for (let i = at + 1; i < at + width; i++) {
    if (weights[i] > high) high = weights[i];
    if (weights[i] < low) low = weights[i];
  }
  finiteHalf(Math.max(high, -low));
  const middle = f(f(low + high) / 2);
  const halfRange = f(f(high - low) / 2);
  let sum = 0;
  for (let i = 0; i < width; i++) {
    w[i] = weights[at + i] - middle;
    sum = i ? f(sum + w[i]) : w[0];
  }
  const { scale, minimum } = bestScale(width, sum, middle, halfRange);
  const inverse = inverseOf(scale);
  for (let i = 0; i < width; i++) q[to + i] = integer(w[i], minimum, inverse);
  return [toHalf(scale), toHalf(f(minimum + middle))];
}

/**
 * Return the scale and minimum with the least squared error for the first `n` of `w`.
 *
 * @param {number} n
 * @param {number} wSum
 * @param {number} middle
 * @param {number} halfRange
 */
function bestScale(n, wSum, middle, halfRange) {
  const best = { scale: 0, minimum: 0 };
  let least = Infinity;
  for (let start = 0; start < RANGES.length; start++) {
    let scale = notTooSmall(f(halfRange * STARTS[start]));
    let minimum = f(halfRange * -RANGES[start]);
    for (let round = 0; round < ROUNDS; round++) {
      const inverse = inverseOf(scale);
      let qSum = 0;
      let qSquare = 0;
      let qW = 0;
      for (let i = 0; i < n; i++) {
        const q = integer(w[i], minimum, inverse);
        qSum += q;
        qSquare += q * q;
        qW = i ? f(qW + f(q * w[i])) : f(q * w[i]);
      }
      const spread = f(f(n * qSquare) - f(qSum * qSum));
      const slope = f(f(f(n * qW) - f(qSum * wSum)) * inverseOf(spread));
      const first = f(f(wSum - f(slope * qSum)) / n);
      scale = f(fromHalf(finiteHalf(notTooSmall(slope))));
      minimum = f(nearestHalf(f(first + middle)) - middle);
      const cross = f(2 * f(f(minimum * qSum) - qW));
      const ofScale = f(scale * f(f(scale * qSquare) + cross));
      const ofMinimum = f(minimum * f(f(n * minimum) - f(2 * wSum)));
      const error = f(ofScale + ofMinimum);
      if (error < least) {
        least = error;
        Object.assign(best, { scale, minimum });
      }
    }
  }
  return best;
}

/**
 * Return the q in 0 … 15 for which q · scale + minimum is nearest to a weight.
 *
 * @param {number} weight
 * @param {number} minimum
 * @param {number} inverse
 */
function integer(weight, minimum, inverse) {
  const q = roundEven(f(f(weight - minimum) * inverse));
  return q < 0 ? 0 : q > 15 ? 15 : q;
}

/** Round to float16; numbers slightly beyond its range are clipped. @param {number} x */
const nearestHalf = (x) => f(fromHalf(toHalf(Math.min(LARGEST, Math.max(-LARGEST, x)))));

/** Round subnormal scales up, so that the levels still reach the largest weight. @param {number} scale */
function notTooSmall(scale) {
  if (scale >= SMALLEST_NORMAL) return scale;
  return Math.max(scale, f(Math.ceil(f(scale / SMALLEST)) * SMALLEST));
}

/** @param {number} x */
function finiteHalf(x) {
  const half = toHalf(x);
  if ((half & 0x7fff) >= INFINITE_HALF)
    throw new RangeError(`a block needs ${x} in float16, which ends at 65504`);
  return half;
}

/** 1 / x, and 0 for 0. @param {number} x */
const inverseOf = (x) => (x === 0 ? 0 : f(1 / x));
