// The scores of heads over several tokens: one token says little about what a head is for.

import { meanScores, placesOf, scoresOf } from "./attentionscores.js";

/** How many tokens are asked for at most. */
export const MOST_TOKENS = 32;
/** Before this one the places of a token are not apart. */
const LEAST_POSITION = 2;

/**
 * The mean of the scores over the last tokens of a run. `ask(position)` resolves to the answer to
 * `attention_from`; one question at a time. `told(done, total)` is called before each; when it
 * returns false, measuring ends. Resolves to null then, else to {scores, from, to}, positions.
 */
export async function measure(ids, ask, told) {
  const from = Math.max(LEAST_POSITION, ids.length - MOST_TOKENS);
  const to = ids.length - 1;
  const all = [];
  for (let position = from; position <= to; position += 1) {
    if (!told(all.length, to - from + 1)) return null;
    const { arrays } = await ask(position);
    all.push(scoresOf(arrays.weights, placesOf(ids, position)));
  }
  return all.length ? { scores: meanScores(all), from, to } : null;
}
