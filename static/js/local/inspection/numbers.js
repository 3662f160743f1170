// Softmax, entropy and the most likely tokens, in double precision (gpu/reference/softmax.py,
// gpu/inspection/readings.py).

/** Numbers in a list or a typed array. @typedef {ArrayLike<number> & Iterable<number>} Numerals */

/** Return the natural logarithms of the probabilities. @param {Numerals} logits */
export function logSoftmax(logits) {
  let most = -Infinity;
  for (const value of logits) if (value > most) most = value;
  let sum = 0;
  for (const value of logits) sum += Math.exp(value - most);
  const shift = most + Math.log(sum);
  return Float64Array.from(logits, (value) => value - shift);
}

/** Return the probabilities. @param {Numerals} logits */
export const softmax = (logits) => logSoftmax(logits).map(Math.exp);

/** Return Σ −p log₂ p in bits; zeros add nothing. @param {Iterable<number>} probabilities */
export function entropy(probabilities) {
  let bits = 0;
  for (const p of probabilities) if (p > 0) bits -= p * Math.log2(p);
  return bits;
}

/** Return how many values are larger than that at `place`. @param {Numerals} values @param {number} place */
export function rankOf(values, place) {
  const value = values[place];
  let rank = 0;
  for (const other of values) if (other > value) rank += 1;
  return rank;
}

/**
 * Return the indexes of the `top` largest values, largest first, ties by index.
 *
 * @param {ArrayLike<number>} values
 * @param {number} top
 */
export function mostLikely(values, top) {
  /** @type {number[]} */
  const found = [];
  const n = Math.min(top, values.length);
  for (let i = 0; i < values.length; i++) {
    if (found.length === n && !(values[i] > values[found[n - 1]])) continue;
    let at = found.length;
    while (at > 0 && values[i] > values[found[at - 1]]) at -= 1;
    found.splice(at, 0, i);
    if (found.length > n) found.pop();
  }
  return found;
}

/** Return all indexes, largest value first, ties by index. @param {ArrayLike<number>} values */
export const ordered = (values) =>
  Uint32Array.from(values, (_, i) => i).sort((a, b) => values[b] - values[a] || a - b);
