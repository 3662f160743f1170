// How often experts were chosen: by one token, and by all tokens of an answer.

/**
 * Count of expert choices per MoE layer. Counts are incremental, so their cost does not grow with
 * the text and they survive the page's summarising of old measurements.
 */
export class ExpertUse {
  /** Tokens whose experts are known. */
  tokens = 0;
  /**
   * Per layer: {tokens, given, gates}: how often each expert was chosen, and the sum of its gates.
   */
  #layers = new Map();

  /**
   * Count one token by its statistics (`TokenStats` of gpu/events.py), if any.
   *
   * @param {Stats | null | undefined} stats
   */
  add(stats) {
    if (!stats?.routes?.length) return;
    this.tokens += 1;
    for (const { layer, experts, gates } of stats.routes) {
      const own = this.#layerCounts(layer);
      own.tokens += 1;
      experts.forEach((expert, i) => {
        own.given[expert] = (own.given[expert] ?? 0) + 1;
        own.gates[expert] = (own.gates[expert] ?? 0) + gates[i];
      });
    }
  }

  /** @param {number} layer */
  #layerCounts(layer) {
    if (!this.#layers.has(layer)) this.#layers.set(layer, { tokens: 0, given: [], gates: [] });
    return this.#layers.get(layer);
  }

  /** @param {number} layer */
  has(layer) {
    return this.#layers.has(layer);
  }

  /**
   * Do these counts fit a model with so many layers and experts per layer?
   *
   * @param {number} nLayers
   * @param {number} n
   */
  within(nLayers, n) {
    return [...this.#layers].every(([layer, { given }]) => layer < nLayers && given.length <= n);
  }

  /** Numbers of the MoE layers, ascending. */
  get layers() {
    return [...this.#layers.keys()].sort((a, b) => a - b);
  }

  /**
   * Counts of a layer with `n` experts: {tokens, given, gates}, zeros for experts never chosen.
   *
   * @param {number} layer
   * @param {number} n
   */
  of(layer, n) {
    const { tokens, given, gates } = this.#layers.get(layer) ?? { tokens: 0, given: [], gates: [] };
    /** @param {number[]} values */
    const filled = (values) => Array.from({ length: n }, (_, expert) => values[expert] ?? 0);
    return { tokens, given: filled(given), gates: filled(gates) };
  }
}

/**
 * Count a prompt row once; rows a later segment computes again are already counted.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 * @param {Stats} stats
 */
export function countPrompt({ promptSegment, use }, segment, stats) {
  if (segment === promptSegment && !segment.promptStats[stats.position]) use.add(stats);
}

/**
 * Count a token of an answer. The row that sampled the first one was the prompt's last.
 *
 * @param {Answer} answer
 * @param {Token} token
 */
export function countToken({ promptSegment, use }, { segment, stats }) {
  const counted = segment === promptSegment && segment.promptStats[stats?.position ?? -1];
  if (!counted) use.add(stats);
}

/**
 * Measure how evenly a layer's choices are spread; `given[e]` is how often expert e was chosen.
 *   choices   total number of choices
 *   used      number of experts chosen at least once
 *   evenness  normalised entropy of the choices (Pielou 1966): 1 if all experts are chosen equally
 *             often, 0 if always the same one; null without choices
 *   never     numbers of the experts never chosen
 *   busiest   number of the most chosen expert, the first of several; null without choices
 *   load      its choices relative to the mean, which is 1
 *
 * @param {number[]} given
 */
export function loadBalance(given) {
  const choices = given.reduce((sum, times) => sum + times, 0);
  const never = given.flatMap((times, expert) => (times ? [] : [expert]));
  const used = given.length - never.length;
  if (!choices) return { choices, used, evenness: null, never, busiest: null, load: null };
  const shares = given.filter(Boolean).map((times) => times / choices);
  const entropy = -shares.reduce((sum, share) => sum + share * Math.log(share), 0);
  const evenness = given.length > 1 ? Math.abs(entropy / Math.log(given.length)) : null;
  const busiest = given.indexOf(Math.max(...given));
  const load = relativeLoad(given[busiest], choices, given.length);
  return { choices, used, evenness, never, busiest, load };
}

/**
 * Choices of one of `n` experts relative to the mean: 1 is an equal share.
 *
 * @param {number} times
 * @param {number} choices
 * @param {number} n
 */
export const relativeLoad = (times, choices, n) => (choices ? (times * n) / choices : 0);

/**
 * Experts of one token in this layer: {experts, gates}, or null.
 *
 * @param {Stats | null} stats
 * @param {number} layer
 */
export const expertChoice = (stats, layer) =>
  stats?.routes?.find((route) => route.layer === layer) ?? null;

/**
 * "expert 7 (gate 0.61), 2 (0.39)", largest gate first.
 *
 * @param {ToPage.ExpertChoice} choice
 */
export function expertChoiceText({ experts, gates }) {
  /**
   * @param {number} expert
   * @param {number} i
   */
  const one = (expert, i) => `${expert} (${i ? "" : "gate "}${(gates[i] ?? NaN).toFixed(2)})`;
  return `expert ${experts.map(one).join(", ")}`;
}
