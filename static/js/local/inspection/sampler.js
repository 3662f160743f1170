// The sampler in double precision (gpu/reference/sampler.py): biases → penalties → temperature →
// top-k → top-p → min-p → draw.

import { MAX_TIMES_WRITTEN } from "../gpu/text-memory.js";
import { ordered, softmax } from "./numbers.js";

const WORD = 0xffffffffn;
const PHILOX_M = [0xd2511f53n, 0xcd9e8d57n];
const PHILOX_W = [0x9e3779b9n, 0xbb67ae85n];
const PHILOX_ROUNDS = 10;

/** Filters in the order in which they act; a token's `cut` is the number of one of them, from 1. */
export const FILTERS = ["top_k", "top_p", "min_p"];

/** @typedef {ReturnType<typeof distribution>} Chances */

/**
 * Return the number in [0, 1) that draws token `index` of a run with a seed of 64 bits.
 *
 * @param {bigint} seed
 * @param {number} index
 */
export function uniform(seed, index) {
  let [k0, k1] = [seed & WORD, seed >> 32n];
  let [c0, c1, c2, c3] = [BigInt(index), 0n, 0n, 0n];
  for (let round = 0; round < PHILOX_ROUNDS; round++) {
    const first = PHILOX_M[0] * c0;
    const second = PHILOX_M[1] * c2;
    [c0, c1, c2, c3] = [(second >> 32n) ^ c1 ^ k0, second & WORD, (first >> 32n) ^ c3 ^ k1, first & WORD];
    k0 = (k0 + PHILOX_W[0]) & WORD;
    k1 = (k1 + PHILOX_W[1]) & WORD;
  }
  return Number(c0 >> 8n) * 2 ** -24;
}

/**
 * Return the logits after biases, penalties and `temperature`. `context`: ids of the text so far,
 * of which the run wrote the last `nWritten`.
 *
 * @param {ArrayLike<number> & Iterable<number>} logits
 * @param {number[]} context
 * @param {SamplerParams} params
 * @param {number} nWritten
 * @param {number} temperature
 */
export function scaleLogits(logits, context, params, nWritten, temperature) {
  const scaled = Float64Array.from(logits);
  for (const { id, bias } of params.logit_bias) scaled[id] += bias;
  const penalty = params.repetition_penalty;
  for (const id of new Set(context)) scaled[id] = scaled[id] > 0 ? scaled[id] / penalty : scaled[id] * penalty;
  for (const [id, times] of timesWritten(context, nWritten))
    scaled[id] -=
      params.frequency_penalty * Math.min(times, MAX_TIMES_WRITTEN) + params.presence_penalty;
  return temperature ? scaled.map((value) => value / temperature) : scaled;
}

/**
 * Return how often the last `nWritten` ids of a text have each id, as a Map.
 *
 * @param {number[]} context
 * @param {number} nWritten
 */
export function timesWritten(context, nWritten) {
  /** @type {Map<number, number>} */
  const times = new Map();
  for (const id of context.slice(Math.max(0, context.length - nWritten)))
    times.set(id, (times.get(id) ?? 0) + 1);
  return times;
}

/**
 * Apply the settings to logits; a temperature of 0 is greedy. Return {order, before, cut, after, mass}: all ids, most likely
 * first; probabilities before the filters; the filter that removed each token (see `FILTERS`; 0: none);
 * probabilities after the filters; the probability that was kept, and cut by each.
 *
 * @param {ArrayLike<number> & Iterable<number>} logits
 * @param {number[]} context
 * @param {SamplerParams} params
 * @param {number} nWritten
 */
export function distribution(logits, context, params, nWritten) {
  const { temperature } = params;
  const scaled = scaleLogits(logits, context, params, nWritten, temperature);
  const order = ordered(scaled);
  const before = softmax(scaled);
  const cut = new Uint8Array(scaled.length);
  if (!temperature) {
    const after = new Float64Array(scaled.length);
    after[order[0]] = 1;
    return { order, before, cut, after, mass: [1, ...FILTERS.map(() => 0)] };
  }
  cutTokens({ order, scaled, before, cut }, params);
  const mass = [0, ...FILTERS.map(() => 0)];
  cut.forEach((by, i) => {
    mass[by] += before[i];
  });
  const after = before.map((p, i) => (cut[i] ? 0 : p / mass[0]));
  return { order, before, cut, after, mass };
}

/**
 * @param {{order: Uint32Array, scaled: Float64Array, before: Float64Array, cut: Uint8Array}} tokens
 * @param {Pick<SamplerParams, "top_k" | "top_p" | "min_p">} params
 */
function cutTokens({ order, scaled, before, cut }, { top_k: topK, top_p: topP, min_p: minP }) {
  /** @param {number} threshold @param {number} filter */
  const cutBelow = (threshold, filter) => {
    for (let i = 0; i < cut.length; i++) if (!cut[i] && scaled[i] < threshold) cut[i] = filter;
  };
  if (topK > 0 && topK < scaled.length) cutBelow(scaled[order[topK - 1]], 1);
  if (topP < 1) {
    const left = order.filter((id) => !cut[id]);
    let total = 0;
    for (const id of left) total += before[id];
    let sum = 0;
    const last = left.find((id) => (sum += before[id]) >= topP * total) ?? left[left.length - 1];
    cutBelow(scaled[last], 2);
  }
  if (minP > 0) cutBelow(scaled[order[0]] + Math.log(minP), 3);
}

/**
 * Return the token at which the cumulative probability, most likely first, exceeds `number`.
 *
 * @param {Pick<Chances, "order" | "after">} chances
 * @param {number} number
 */
export function draw({ order, after }, number) {
  const survivors = order.filter((id) => after[id] > 0);
  let total = 0;
  for (const id of survivors) total += after[id];
  let sum = 0;
  return survivors.find((id) => (sum += after[id]) > number * total) ?? survivors[survivors.length - 1];
}
