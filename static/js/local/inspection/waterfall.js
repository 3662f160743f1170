// Stages in which settings turn logits into the distribution that a token is drawn from
// (gpu/inspection/waterfall.py).

import { floats, ints } from "./arrays.js";
import { entropy, softmax } from "./numbers.js";
import {
  FILTERS,
  distribution,
  draw,
  scaleLogits,
  timesWritten,
  uniform,
} from "./sampler.js";

/** @typedef {import("./sampler.js").Chances} Chances */

/**
 * Return {info, arrays} for the logits after `context`. `index`: tokens that the run wrote of it;
 * `also`: tokens to list beside the `top` most likely ones.
 *
 * @param {Float32Array} logits
 * @param {number[]} context
 * @param {{params: SamplerParams, index: number, top: number, also: number[]}} question
 */
export function waterfall(logits, context, { params, index, top, also }) {
  const drawn = params.first_index + index;
  const chances = distribution(logits, context, params, drawn);
  const greedy = params.temperature === 0;
  const number = greedy ? 0 : uniform(params.seed, drawn);
  const chosen = draw(chances, number);
  const raw = softmax(logits);
  const penalised = softmax(scaleLogits(logits, context, params, drawn, 1));
  const stages = [...changes(raw, penalised, chances.before), ...filters(chances)];
  stages.push({ ...stages[stages.length - 1], name: "watermark", removed: 0 }); // it writes none
  const shown = [...new Set([...chances.order.subarray(0, top), chosen, ...also])];
  const columns = { logits, raw, penalised, ...chances };
  return {
    info: { stages, draw: number, draw_at: number, chosen, greedy },
    arrays: { ...texts(shown, chances.cut, context, drawn), ...shares(shown, columns) },
  };
}

/**
 * Stages that change shares and remove no token.
 *
 * @param {Float64Array} raw
 * @param {Float64Array} penalised
 * @param {Float64Array} tempered
 */
function changes(raw, penalised, tempered) {
  const named = { logits: raw, penalty: penalised, temperature: tempered };
  return Object.entries(named).map(([name, p]) => ({
    name,
    n_kept: p.length,
    kept: 1,
    removed: 0,
    entropy: entropy(p),
  }));
}

/** Stages that remove tokens. @param {Chances} chances */
function filters({ before, cut, mass }) {
  let left = 1;
  return FILTERS.map((name, i) => {
    const filter = i + 1;
    const alive = before.filter((_, id) => cut[id] === 0 || cut[id] > filter);
    const sum = alive.reduce((total, p) => total + p, 0);
    left -= mass[filter];
    const bits = entropy(alive.map((p) => p / sum));
    return { name, n_kept: alive.length, kept: left, removed: mass[filter], entropy: bits };
  });
}

/** @param {number[]} shown @param {Uint8Array} cut @param {number[]} context @param {number} nWritten */
function texts(shown, cut, context, nWritten) {
  const seen = new Set(context);
  const times = timesWritten(context, nWritten);
  return {
    ids: ints(shown),
    cut: ints(shown.map((id) => cut[id])),
    seen: ints(shown.map((id) => Number(seen.has(id)))),
    written: ints(shown.map((id) => times.get(id) ?? 0)),
  };
}

/**
 * @param {number[]} shown
 * @param {Chances & {logits: Float32Array, raw: Float64Array, penalised: Float64Array}} columns
 */
function shares(shown, { logits, raw, penalised, before, after, order, cut }) {
  const high = new Float64Array(after.length);
  const above = new Float64Array(after.length);
  const marked = before.map((p, id) => (cut[id] ? 0 : p));
  let sum = 0;
  let through = 0;
  for (const id of order) {
    high[id] = sum += after[id];
    above[id] = through;
    through += marked[id];
  }
  const low = high.map((end, id) => end - after[id]);
  const columns = { logit: logits, raw, penalised, tempered: before, marked, above, marked_above: above, after, low, high };
  return Object.fromEntries(
    Object.entries(columns).map(([name, values]) => [name, floats(shown.map((id) => values[id]))]),
  );
}
