// Metrics of the core sample's colours, and their scales.
//
// Scales are fixed. Entropy, relative update and cosine always use the same one. GPU time and
// residual norm depend on device and model: their scales are set by the first usable measurement
// and then kept, so a column never changes colour later.

/** Upper end of the entropy scale: uniform attention over 256 tokens. */
const MAX_BITS = 8;
/**
 * Updates are on a log scale: 5 % and 10 % differ as much as 50 % and 100 %.
 *
 * @type {[number, number]}
 */
const UPDATE_RANGE = [0.05, 1];
/**
 * Cosines of trained models seldom exceed one half; the scale is symmetric around 0.
 *
 * @type {[number, number]}
 */
const COSINE_RANGE = [-0.75, 0.75];

/** Scale from `lo` to `hi`, linear or logarithmic. */
class Scale {
  /**
   * @param {number} lo
   * @param {number} hi
   * @param {boolean} [byRatio]
   */
  constructor(lo, hi, byRatio = false) {
    this.lo = lo;
    this.hi = hi;
    this.byRatio = byRatio;
  }

  /** Position of a value in [0, 1], clamped. @param {number} value */
  at(value) {
    const x = this.byRatio
      ? Math.log(Math.max(value, 1e-12) / this.lo) / Math.log(this.hi / this.lo)
      : (value - this.lo) / (this.hi - this.lo);
    return Math.min(1, Math.max(0, x));
  }
}

/**
 * Round to the next 1, 2 or 5 × 10ⁿ, up (direction 1) or down (-1).
 *
 * @param {number} value
 * @param {number} direction
 */
export function round125(value, direction) {
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = direction > 0 ? [1, 2, 5, 10] : [10, 5, 2, 1];
  /** @param {number} step */
  const fits = (step) =>
    direction > 0 ? step * power >= value * 0.999 : step * power <= value * 1.001;
  return power * (steps.find(fits) ?? NaN);
}

/** @param {number} value */
const ms = (value) => (value < 1 ? `${Math.round(value * 1000)} µs` : `${value.toFixed(2)} ms`);
/**
 * `part / whole`; null where one is unknown or `whole` is not positive.
 *
 * @param {number | null} part
 * @param {number | null} whole
 */
const ratio = (part, whole) => (part !== null && whole !== null && whole > 0 ? part / whole : null);

/** Two decimals, with a typographic minus. @param {number} value */
export const signed = (value) => value.toFixed(2).replace("-", "−");
/** @param {number} value */
const plainNumber = (value) => (value >= 100 ? value.toFixed(0) : value.toPrecision(2));

/**
 * name, what: labels. parts(model): rows per layer. part(i): name of a row, from the bottom.
 * value(layer, i): the measured value or null. edge(stats, end): value of the embedding ("embed")
 * or output ("output") row, or null. format(value): text with unit.
 */
export const METRICS = {
  update: {
    name: "Update",
    what: "relative update",
    parts: () => 2,
    /** @param {number} i */
    part: (i) => (i ? "MLP" : "attention"),
    /**
     * @param {ToPage.LayerStats} layer
     * @param {number} i
     */
    value: (layer, i) =>
      ratio(i ? layer.mlp : layer.attention, layer.residual),
    edge: () => null,
    /** @param {number} value */
    format: (value) => value.toFixed(2),
  },
  time: {
    name: "GPU time",
    what: "GPU time",
    parts: () => 2,
    /** @param {number} i */
    part: (i) => (i ? "MLP" : "attention"),
    /**
     * @param {ToPage.LayerStats} layer
     * @param {number} i
     */
    value: (layer, i) => (i ? layer.mlp_ms : layer.attention_ms) ?? null,
    /**
     * @param {Stats} stats
     * @param {"embed" | "output"} end
     */
    edge: (stats, end) => (end === "embed" ? stats.embed_ms : stats.head_ms) ?? null,
    format: ms,
  },
  entropy: {
    name: "Attention entropy",
    what: "attention entropy",
    /**
     * @param {ToPage.PageModelInfo} model
     * @param {number} row
     */
    parts: (model, row) => (row / model.n_heads >= 2 ? model.n_heads : 1),
    /**
     * @param {number} i
     * @param {number} parts
     */
    part: (i, parts) => (parts > 1 ? `head ${i}` : "all heads"),
    /**
     * @param {ToPage.LayerStats} layer
     * @param {number} i
     * @param {number} parts
     */
    value: (layer, i, parts) =>
      parts === layer.entropy.length ? layer.entropy[i] : meanOfMeasured(layer.entropy),
    edge: () => null,
    /** @param {number} value */
    format: (value) => `${value.toFixed(1)} bit`,
  },
  norm: {
    name: "Residual norm",
    what: "residual norm",
    parts: () => 1,
    part: () => "",
    /** @param {ToPage.LayerStats} layer */
    value: (layer) => layer.residual,
    /**
     * @param {Stats} stats
     * @param {"embed" | "output"} end
     */
    edge: (stats, end) => (end === "embed" ? stats.embedding : null),
    format: plainNumber,
  },
  cosine: {
    name: "Cosine",
    what: "cosine to the stream",
    parts: () => 2,
    /** @param {number} i */
    part: (i) => (i ? "MLP" : "attention"),
    /**
     * @param {ToPage.LayerStats} layer
     * @param {number} i
     */
    value: (layer, i) => (i ? layer.mlp_cosine : layer.attention_cosine) ?? null,
    edge: () => null,
    format: signed,
  },
};

export const METRIC_NAMES = /** @type {MetricName[]} */ (Object.keys(METRICS));

/** Mean of what was measured; null: nothing was. @param {Array<number | null>} values */
export function meanOfMeasured(values) {
  const measured = values.filter((value) => value != null); // older files leave some out
  return measured.length ? measured.reduce((sum, value) => sum + value, 0) / measured.length : null;
}

/** Scales for one model and device. */
export class Scales {
  constructor() {
    this.update = new Scale(...UPDATE_RANGE, true);
    this.entropy = new Scale(0, MAX_BITS);
    this.cosine = new Scale(...COSINE_RANGE);
    /** Set by the first measurement; null before. @type {Scale | null} */
    this.time = null;
    /** @type {Scale | null} */
    this.norm = null;
  }

  /**
   * Set missing scales from the statistics of some tokens; true when one was set.
   *
   * @param {Stats[]} tokens
   */
  settle(tokens) {
    const norms = this.norm ? [] : numbers(tokens, ({ residual }) => [residual]);
    if (norms.length) {
      // Logarithmic. The 90th percentile, because the first token of a text may be an outlier
      // (attention sink).
      const hi = round125(norms[Math.floor(norms.length * 0.9)] * 1.5, 1);
      this.norm = new Scale(Math.min(round125(norms[0] / 1.2, -1), hi / 10), hi, true);
    }
    // A prefill step computes many tokens at once; the scale is for decode steps.
    const steps = tokens.filter(({ n_rows: rows }) => rows <= 2);
    const times = this.time ? [] : numbers(steps, (l) => [l.attention_ms, l.mlp_ms]);
    if (times.length) this.time = new Scale(0, round125(times[times.length >> 1] * 2.5, 1));
    return norms.length + times.length > 0;
  }
}

/**
 * Positive values of all layers of some tokens, ascending.
 *
 * @param {Stats[]} tokens
 * @param {(layer: ToPage.LayerStats) => Array<number | null>} pick
 */
function numbers(tokens, pick) {
  const all = tokens.flatMap(({ layers }) => layers.flatMap(pick));
  return all.filter((value) => value !== null).filter((value) => value > 0).sort((a, b) => a - b);
}

/** The scales of the loaded model; replaced when `hello` names another one. */
export let scales = new Scales();

/** Replace the scales, by new ones if none are given; returns the previous ones. */
export function useScales(own = new Scales()) {
  const before = scales;
  scales = own;
  return before;
}
