// Operations and bytes of a step by the terms of the plan file (docs/plan-format.md, Costs).

/**
 * A step of `rows` tokens after `context` others, one of them sampled.
 *
 * @typedef {{rows: number, context: number}} StepSize
 */

/**
 * What terms can ask for of a step, given their arguments.
 *
 * @type {Record<Exported.CostTerm[1], (step: StepSize, first: number, second: number) => number>}
 */
const SIZES = {
  one: () => 1,
  rows: ({ rows }) => rows,
  samples: () => 1,
  seen: keysSeen,
  cached: keysCached,
  cached_blocks: (step, window, tokens) => Math.ceil(keysCached(step, window) / tokens),
  splits: ({ rows, context }, split) => sumOfRows(rows, (i) => Math.floor((context + i) / split) + 1),
  power: ({ rows }, base) => base ** rows,
};

/** Names of the sizes that a plan file may use. */
export const SIZE_NAMES = Object.keys(SIZES);

/** Return the sum of `terms`. @param {Exported.CostTerm[]} terms @param {StepSize} step */
export function sumOfTerms(terms, step) {
  let sum = 0;
  for (const [coefficient, size, [first, second]] of terms) sum += coefficient * SIZES[size](step, first, second);
  return roundHalfEven(sum);
}

/**
 * Pairs of a row and a key that it sees: the last `window` ones, 0: all.
 *
 * @param {StepSize} step
 * @param {number} window
 */
function keysSeen({ rows, context }, window) {
  /** @param {number} n */
  const seen = (n) => (window ? Math.min(n, window) : n);
  return sumOfRows(rows, (i) => seen(context + i + 1));
}

/** Keys that at least one row sees. @param {StepSize} step @param {number} window */
function keysCached({ rows, context }, window) {
  const all = context + rows;
  return window ? Math.min(all, rows + window - 1) : all;
}

/** @param {number} rows @param {(row: number) => number} of */
function sumOfRows(rows, of) {
  let sum = 0;
  for (let i = 0; i < rows; i += 1) sum += of(i);
  return sum;
}

/** Round as Python does. @param {number} value */
function roundHalfEven(value) {
  const low = Math.floor(value);
  if (value - low !== 0.5) return Math.round(value);
  return low % 2 ? low + 1 : low;
}
