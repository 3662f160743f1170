// Mean head scores over several tokens: one token says little about a head's function.

import { meanScores, placesOf, scoresOf } from "./scores.js";

/** Maximum number of tokens measured. */
export const MAX_TOKENS = 32;
/** Before this position the places of a token coincide. */
const MIN_POSITION = 2;

/**
 * Return the mean scores over the last tokens of a run, {scores, from, to} in positions.
 * `ask(position)` resolves to the answer to `attention_from`; one query at a time.
 * `onProgress(done, total)` is called before each; if it returns false, measuring ends and the
 * result is null.
 *
 * @param {number[]} ids
 * @param {(position: number) => Promise<FrameAnswer>} ask
 * @param {(done: number, total: number) => boolean} onProgress
 */
export async function measure(ids, ask, onProgress) {
  const from = Math.max(MIN_POSITION, ids.length - MAX_TOKENS);
  const to = ids.length - 1;
  const all = [];
  for (let position = from; position <= to; position += 1) {
    if (!onProgress(all.length, to - from + 1)) return null;
    const { arrays } = await ask(position);
    all.push(scoresOf(arrays.weights, placesOf(ids, position)));
  }
  return all.length ? { scores: meanScores(all), from, to } : null;
}
