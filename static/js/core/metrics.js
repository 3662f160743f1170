// What the colours of the core mean: the metrics, and their scales.
//
// A scale is fixed. Entropy, relative update and cosine have the same one always; GPU time and
// residual norm depend on the device and the model, so theirs is settled by the first measurement
// that fits and then kept: a column never changes colour later.

/** Entropy past this is off the scale (a head that looks at 256 tokens alike). */
const MOST_BITS = 8;
/** Updates are compared by ratio: 5 % and 10 % of the stream differ as much as 50 % and 100 %. */
const UPDATE_RANGE = [0.05, 1];
/** Cosines: trained models seldom pass half, and an update against the stream is as far as one along. */
const COSINE_RANGE = [-0.75, 0.75];

/** A scale from `lo` to `hi`, linear or by ratio. */
class Scale {
  constructor(lo, hi, byRatio = false) {
    this.lo = lo;
    this.hi = hi;
    this.byRatio = byRatio;
  }

  /** Where a value lies, 0 to 1; values beyond the ends lie at the ends. */
  at(value) {
    const x = this.byRatio
      ? Math.log(Math.max(value, 1e-12) / this.lo) / Math.log(this.hi / this.lo)
      : (value - this.lo) / (this.hi - this.lo);
    return Math.min(1, Math.max(0, x));
  }
}

/** The next 1, 2 or 5 × 10ⁿ: up (direction 1) or down (-1). */
export function round125(value, direction) {
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = direction > 0 ? [1, 2, 5, 10] : [10, 5, 2, 1];
  const fits = (step) =>
    direction > 0 ? step * power >= value * 0.999 : step * power <= value * 1.001;
  return power * steps.find(fits);
}

const ms = (value) => (value < 1 ? `${Math.round(value * 1000)} µs` : `${value.toFixed(2)} ms`);
/** Two digits, with the sign that figures have. */
export const signed = (value) => value.toFixed(2).replace("-", "−");
const plainNumber = (value) => (value >= 100 ? value.toFixed(0) : value.toPrecision(2));

/**
 * name, what: for people. parts(model): how many rows a layer has. part(i): the name of a row, from the bottom.
 * value(layer, i): the measured number or null. edge(stats, end): number of the embedding ("embed")
 * or output ("output") row, or null. format(value): with unit.
 */
export const METRICS = {
  update: {
    name: "Update",
    what: "relative update",
    parts: () => 2,
    part: (i) => (i ? "MLP" : "attention"),
    value: (layer, i) =>
      layer.residual > 0 ? (i ? layer.mlp : layer.attention) / layer.residual : null,
    edge: () => null,
    format: (value) => value.toFixed(2),
  },
  time: {
    name: "GPU time",
    what: "time on the GPU",
    parts: () => 2,
    part: (i) => (i ? "MLP" : "attention"),
    value: (layer, i) => (i ? layer.mlp_ms : layer.attention_ms) ?? null,
    edge: (stats, end) => (end === "embed" ? stats.embed_ms : stats.head_ms) ?? null,
    format: ms,
  },
  entropy: {
    name: "Attention entropy",
    what: "spread of attention",
    parts: (model, row) => (row / model.n_heads >= 2 ? model.n_heads : 1),
    part: (i, parts) => (parts > 1 ? `head ${i}` : "all heads"),
    value: (layer, i, parts) =>
      parts === layer.entropy.length ? layer.entropy[i] : mean(layer.entropy),
    edge: () => null,
    format: (value) => `${value.toFixed(1)} bit`,
  },
  norm: {
    name: "Residual norm",
    what: "length of the stream",
    parts: () => 1,
    part: () => "",
    value: (layer) => layer.residual,
    edge: (stats, end) => (end === "embed" ? stats.embedding : null),
    format: plainNumber,
  },
  cosine: {
    name: "Cosine",
    what: "update along the stream",
    parts: () => 2,
    part: (i) => (i ? "MLP" : "attention"),
    value: (layer, i) => (i ? layer.mlp_cosine : layer.attention_cosine) ?? null,
    edge: () => null,
    format: signed,
  },
};

export const METRIC_NAMES = Object.keys(METRICS);

const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;

/** The scales of one answer's model and device. */
export class Scales {
  constructor() {
    this.update = new Scale(...UPDATE_RANGE, true);
    this.entropy = new Scale(0, MOST_BITS);
    this.cosine = new Scale(...COSINE_RANGE);
    /** Settled later; null: nothing was measured yet. */
    this.time = null;
    this.norm = null;
  }

  /** Look at the statistics of some tokens; true when they settled a scale. */
  settle(tokens) {
    const norms = this.norm ? [] : numbers(tokens, ({ residual }) => [residual]);
    if (norms.length) {
      // By ratio. The very first token of a text may be far off (an attention sink), so not the largest.
      const hi = round125(norms[Math.floor(norms.length * 0.9)] * 1.5, 1);
      this.norm = new Scale(Math.min(round125(norms[0] / 1.2, -1), hi / 10), hi, true);
    }
    // A prefill step computes many tokens at once; the scale is for steps that write one.
    const steps = tokens.filter(({ n_rows: rows }) => rows <= 2);
    const times = this.time ? [] : numbers(steps, (l) => [l.attention_ms, l.mlp_ms]);
    if (times.length) this.time = new Scale(0, round125(times[times.length >> 1] * 2.5, 1));
    return norms.length + times.length > 0;
  }
}

/** Positive numbers of all layers of some tokens, in rising order. */
function numbers(tokens, pick) {
  const all = tokens.flatMap(({ layers }) => layers.flatMap(pick));
  return all.filter((value) => value > 0).sort((a, b) => a - b);
}

/** The scales of the model that is loaded; replaced when a `hello` names another one. */
export let scales = new Scales();

/** Use these from now on, or new ones; returns those that were used. */
export function useScales(own = new Scales()) {
  const before = scales;
  scales = own;
  return before;
}
