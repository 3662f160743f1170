// Scores of experts by REAP (Lasby et al. 2025, arXiv 2510.13999; gpu/analysis/reap.py): the mean of
// gate · ‖output‖ over the tokens that were routed to an expert, 0 if there were none.

export class ExpertScores {
  /** Tokens that are counted: the first of the text. */
  tokens = 0;
  /** Layers that have experts, lowest first. @type {number[]} */
  layers = [];
  /** Experts of a layer, and how many each token uses. */
  n = 0;
  perToken = 0;
  /** By place in `layers`. @type {Float64Array[]} */
  #sums = [];
  /** @type {Uint32Array[]} */
  #counts = [];

  /** @param {string} run name of the run whose text is counted */
  constructor(run) {
    this.run = run;
  }

  /** Count the tokens of an answer to `Routing`, which follow those that are counted. @param {FrameAnswer} answer */
  add({ info, arrays: { chosen, gates, norms } }) {
    const [tokens, , perToken] = chosen.shape;
    if (!this.tokens) {
      this.layers = /** @type {number[]} */ (info.layers);
      this.n = Number(info.n_experts);
      this.perToken = perToken;
      this.#sums = this.layers.map(() => new Float64Array(this.n));
      this.#counts = this.layers.map(() => new Uint32Array(this.n));
    }
    chosen.values.forEach((expert, i) => {
      const place = Math.floor(i / perToken) % this.layers.length;
      this.#sums[place][expert] += gates.values[i] * norms.values[i];
      this.#counts[place][expert] += 1;
    });
    this.tokens += tokens;
  }

  /**
   * Scores and numbers of tokens of the experts of a layer.
   *
   * @param {number} layer
   */
  of(layer) {
    const place = this.layers.indexOf(layer);
    const counts = [...(this.#counts[place] ?? [])];
    return { counts, scores: counts.map((count, i) => (count ? this.#sums[place][i] / count : 0)) };
  }

  /**
   * The `n` experts of a layer with the lowest scores, the lowest first; of equal ones the higher
   * number, as `tokenglass reap` drops them.
   *
   * @param {number} layer
   * @param {number} n
   */
  lowest(layer, n) {
    const { scores } = this.of(layer);
    const order = scores.map((_, expert) => expert).sort((a, b) => scores[a] - scores[b] || b - a);
    return order.slice(0, n).map((expert) => ({ layer, expert }));
  }
}
