// Figures of offloaded experts: the steps of an answer, and what each found and loaded.

/**
 * A step of a run that used offloaded experts. `index`: of the token that it chose; a chunk of the
 * prompt has that of its last token, below 0. `n`: tokens of the chunk, 0 of a written token.
 *
 * @typedef {{index: number, n: number, experts: ToPage.ExpertUse}} OffloadStep
 */

/** Use of all steps or of one: sums of `ToPage.ExpertUse`, and of the steps with times `ms` and `timedBytes`. @typedef {{found: number, brought: number, bytes: number, timedBytes: number, ms: number | null}} OffloadSum */

/**
 * Return the steps of an answer whose experts are known, in order.
 *
 * @param {Answer} answer
 * @returns {OffloadStep[]}
 */
export function stepsOf({ segments, tokens }) {
  /** @type {OffloadStep[]} */
  const steps = [];
  for (const { prompt, chunks, base, nTokens } of segments) {
    let from = chunks[0]?.reused ?? 0;
    for (const { done, experts } of chunks) {
      if (experts) steps.push({ index: base + done - 1 - prompt.length, n: done - from, experts });
      from = done;
    }
    for (let index = base; index < base + nTokens; index += 1) {
      const { experts } = tokens[index] ?? {};
      if (experts && experts.found + experts.brought) steps.push({ index, n: 0, experts });
    }
  }
  return steps;
}

/**
 * Return the place of the step that chose the token `index`, or the newest for null; −1 if it is
 * not known. The last step of the prompt chose the first token; other tokens without a step of
 * their own were drafts of the step before.
 *
 * @param {OffloadStep[]} steps
 * @param {number | null} index
 */
export function stepAt(steps, index) {
  if (index === null) return steps.length - 1;
  if (index < 0) return steps.findIndex((step) => step.n > 0 && step.index >= index);
  return steps.findLastIndex((step) => step.index <= index);
}

/** @param {ToPage.ExpertUse[]} uses @returns {OffloadSum} */
export function sumOf(uses) {
  const layers = uses.flatMap(({ layers: own }) => own ?? []);
  /** @template T @param {T[]} list @param {(one: T) => number} pick */
  const sum = (list, pick) => list.reduce((total, one) => total + pick(one), 0);
  return {
    found: sum(uses, ({ found }) => found),
    brought: sum(uses, ({ brought }) => brought),
    bytes: sum(uses, ({ n_bytes }) => n_bytes),
    timedBytes: sum(layers, ({ n_bytes }) => n_bytes),
    ms: layers.length ? sum(layers, ({ ms }) => ms) : null,
  };
}

/** Share of the experts that were on the device; null without any. @param {Pick<OffloadSum, "found" | "brought">} sum */
export const hitRate = ({ found, brought }) =>
  found + brought ? found / (found + brought) : null;

/**
 * State of each of the `n` experts of a layer in a step: "" is in host memory only.
 *
 * @param {ToPage.LayerExpertUse} layer
 * @param {number} n
 * @returns {ExpertState[]}
 */
export function statesOf({ found, brought, held }, n) {
  /** @type {ExpertState[]} */
  const states = Array(n).fill("");
  for (const expert of held) states[expert] = "held";
  for (const expert of found) states[expert] = "found";
  for (const expert of brought) states[expert] = "brought";
  return states;
}

/**
 * Table: a row per step and layer; a step without capture has one row for all layers.
 *
 * @param {OffloadStep[]} steps
 */
export function numbersOf(steps) {
  const list = (/** @type {number[]} */ experts) => experts.join(" ");
  return {
    columns: [
      "step",
      "token",
      "prompt tokens",
      "layer",
      "hits",
      "loaded",
      "bytes",
      "ms",
      "experts found",
      "experts loaded",
      "experts held",
    ],
    rows: steps.flatMap(({ index, n, experts }, step) => {
      const start = n ? [step + 1, null, n] : [step + 1, index + 1, null];
      const { layers = [], found, brought, n_bytes: bytes } = experts;
      if (!layers.length) return [[...start, null, found, brought, bytes, null, null, null, null]];
      return layers.map((one) => [
        ...start,
        one.layer,
        one.found.length,
        one.brought.length,
        one.n_bytes,
        one.ms,
        list(one.found),
        list(one.brought),
        list(one.held),
      ]);
    }),
  };
}
