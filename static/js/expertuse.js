// What a layer's experts were used for: by one token, and by all tokens of a run so far.

/**
 * How evenly `n` experts of a layer were used by `tokens` (with `stats`, `TokenStats` of
 * gpu/events.py, or null): {tokens, given, used, evenness}
 *   tokens    those whose experts are known; of the oldest the page keeps a summary without them
 *   given     how often each expert was chosen, by its number
 *   used      experts chosen at all
 *   evenness  entropy of the shares of all choices, divided by that of equal shares (Shannon): 1 where
 *             every expert is chosen as often, 0 where one always is
 */
export function useOf(tokens, layer, n) {
  const tally = newTally(layer, n);
  for (const token of tokens) tallyUp(tally, token?.stats);
  return readTally(tally);
}

/** What `useOf` counts, to go on with. */
export const newTally = (layer, n) => ({ layer, n, known: 0, given: new Array(n).fill(0) });

export function tallyUp(tally, stats) {
  const route = routeOf(stats, tally.layer);
  if (!route) return;
  tally.known += 1;
  for (const expert of route.experts) tally.given[expert] += 1;
}

export function readTally({ n, known, given }) {
  const all = given.reduce((sum, times) => sum + times, 0);
  const shares = given.filter(Boolean).map((times) => times / all);
  const entropy = -shares.reduce((sum, share) => sum + share * Math.log(share), 0);
  const evenness = n > 1 && all ? Math.abs(entropy / Math.log(n)) : null;
  return { tokens: known, given, used: shares.length, evenness };
}

/** The experts of one token in this layer: {experts, gates}, or null. */
export const routeOf = (stats, layer) =>
  stats?.routes?.find((route) => route.layer === layer) ?? null;

/** "expert 7 (gate 0.61), 2 (0.39)": the largest gate first. */
export const routeInWords = ({ experts, gates }) =>
  `expert ${experts.map((expert, i) => `${expert} (${i ? "" : "gate "}${gates[i].toFixed(2)})`).join(", ")}`;
