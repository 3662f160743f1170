// What experts were used for: by one token, and by all tokens of an answer so far.

/**
 * How often each expert was chosen, in every layer that has some. Counted as measurements come: a
 * token costs its own choices, however long the text is, and stays counted when the page keeps no
 * more than a summary of it.
 */
export class ExpertUse {
  /** Tokens whose experts are known. */
  tokens = 0;
  /** By layer: {tokens, given, gates}, how often and with what sum of gates each expert was chosen. */
  #layers = new Map();

  /** Count what is known of one token: its statistics (`TokenStats` of gpu/events.py), or nothing. */
  take(stats) {
    if (!stats?.routes?.length) return;
    this.tokens += 1;
    for (const { layer, experts, gates } of stats.routes) {
      const own = this.#ofLayer(layer);
      own.tokens += 1;
      experts.forEach((expert, i) => {
        own.given[expert] = (own.given[expert] ?? 0) + 1;
        own.gates[expert] = (own.gates[expert] ?? 0) + gates[i];
      });
    }
  }

  #ofLayer(layer) {
    if (!this.#layers.has(layer)) this.#layers.set(layer, { tokens: 0, given: [], gates: [] });
    return this.#layers.get(layer);
  }

  has(layer) {
    return this.#layers.has(layer);
  }

  /** May it be of a model with so many layers, and experts in each? */
  within(nLayers, n) {
    return [...this.#layers].every(([layer, { given }]) => layer < nLayers && given.length <= n);
  }

  /** Numbers of the layers that gave tokens to experts, from the lowest. */
  get layers() {
    return [...this.#layers.keys()].sort((a, b) => a - b);
  }

  /** A layer of `n` experts: {tokens, given, gates}, zeros for those never chosen. */
  of(layer, n) {
    const { tokens, given, gates } = this.#layers.get(layer) ?? { tokens: 0, given: [], gates: [] };
    const filled = (values) => Array.from({ length: n }, (_, expert) => values[expert] ?? 0);
    return { tokens, given: filled(given), gates: filled(gates) };
  }
}

/** Count a row of an answer's prompt, once; what a later segment of it reads again was counted. */
export function countPrompt({ segments, use }, segment, stats) {
  if (segment === segments[0] && !segment.promptStats[stats.position]) use.take(stats);
}

/** Count a token of an answer. The row that chose the first one was the prompt's last. */
export function countToken({ segments, use }, { segment, stats }) {
  const counted = segment === segments[0] && segment.promptStats[stats?.position];
  if (!counted) use.take(stats);
}

/**
 * How a layer's choices are spread over its experts; `given`: how often each was chosen.
 *   choices   all of them
 *   used      experts chosen at all
 *   evenness  entropy of the shares of all choices, divided by that of equal shares (Pielou 1966): 1
 *             where every expert is chosen as often, 0 where one always is; null without choices
 *   never     numbers of the experts never chosen
 *   busiest   number of the one chosen most often, the first of several; null without choices
 *   load      its share beside the mean expert's, which is 1
 */
export function spreadOf(given) {
  const choices = given.reduce((sum, times) => sum + times, 0);
  const never = given.flatMap((times, expert) => (times ? [] : [expert]));
  const used = given.length - never.length;
  if (!choices) return { choices, used, evenness: null, never, busiest: null, load: null };
  const shares = given.filter(Boolean).map((times) => times / choices);
  const entropy = -shares.reduce((sum, share) => sum + share * Math.log(share), 0);
  const evenness = given.length > 1 ? Math.abs(entropy / Math.log(given.length)) : null;
  const busiest = given.indexOf(Math.max(...given));
  const load = loadOf(given[busiest], choices, given.length);
  return { choices, used, evenness, never, busiest, load };
}

/** What one of `n` experts was given beside the mean of them all: 1 is an equal share. */
export const loadOf = (times, choices, n) => (choices ? (times * n) / choices : 0);

/** The experts of one token in this layer: {experts, gates}, or null. */
export const routeOf = (stats, layer) =>
  stats?.routes?.find((route) => route.layer === layer) ?? null;

/** "expert 7 (gate 0.61), 2 (0.39)": the largest gate first. */
export const routeInWords = ({ experts, gates }) =>
  `expert ${experts.map((expert, i) => `${expert} (${i ? "" : "gate "}${gates[i].toFixed(2)})`).join(", ")}`;
