// What the lens says of a token, from its ranks after each stage: the embedding, then the layers.

import { ordinal } from "../format.js";

/** What a stage is called; the first is the embedding. */
export const stageName = (stage) => (stage ? `layer ${stage - 1}` : "embed");

const from = (stage) => (stage ? stageName(stage) : "the embedding");
const after = (stage) => (stage ? `after layer ${stage - 1}` : "at the embedding");

/**
 * When the token was the top guess: `first` after this stage for the first time, `settled` from
 * this stage to the end. null: never; not at the end.
 */
export function whenTop(ranks) {
  const first = ranks.indexOf(0);
  if (first < 0) return { first: null, settled: null };
  let settled = ranks.length;
  while (settled > 0 && ranks[settled - 1] === 0) settled -= 1;
  return { first, settled: settled < ranks.length ? settled : null };
}

/** The same as a sentence about the token that is called `name`. */
export function inWords(ranks, name) {
  const { first, settled } = whenTop(ranks);
  const last = ranks.at(-1);
  if (first === null) {
    const best = Math.min(...ranks);
    const where = after(ranks.indexOf(best));
    const most = `${ordinal(best)} at best, ${where}, and ${ordinal(last)} at the end`;
    return `${name} is never the top guess: ${most}.`;
  }
  if (settled === null)
    return `${name} is the top guess ${after(first)}, and ${ordinal(last)} at the end.`;
  if (settled === first) return `${name} is the top guess from ${from(first)} on.`;
  const when = `${after(first)} for the first time, and ${after(settled)} for good`;
  return `${name} is the top guess ${when}.`;
}

/** Of a flat (n_stages, n) array, the part of one stage. */
export const ofStage = ({ shape: [, n], values }, stage) =>
  values.subarray(stage * n, (stage + 1) * n);
