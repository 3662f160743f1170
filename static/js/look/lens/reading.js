// Description of a logit lens: when the token becomes the top prediction, by its rank after each
// stage.

import { ordinal } from "../../ui/format.js";

/** Name of a stage; stage 0 is the embedding. @param {number} stage */
export const stageName = (stage) => (stage ? `layer ${stage - 1}` : "embed");

/** @param {number} stage */
const from = (stage) => (stage ? stageName(stage) : "the embedding");
/** @param {number} stage */
const after = (stage) => (stage ? `after layer ${stage - 1}` : "at the embedding");

/**
 * Stages at which the token was the top prediction: `first`, the first one; `settled`, the one from
 * which it stayed so to the end. null: never, or not at the end.
 *
 * @param {number[]} ranks
 * @returns {{first: null, settled: null} | {first: number, settled: number | null}}
 */
export function whenTop(ranks) {
  const first = ranks.indexOf(0);
  if (first < 0) return { first: null, settled: null };
  let settled = ranks.length;
  while (settled > 0 && ranks[settled - 1] === 0) settled -= 1;
  return { first, settled: settled < ranks.length ? settled : null };
}

/** Describe this for the token labelled `name`. @param {number[]} ranks @param {string} name */
export function inWords(ranks, name) {
  const { first, settled } = whenTop(ranks);
  const last = ranks[ranks.length - 1];
  if (first === null) {
    const best = Math.min(...ranks);
    const where = after(ranks.indexOf(best));
    const most = `${ordinal(best)} at best, ${where}, and ${ordinal(last)} at the end`;
    return `${name} is never the top prediction: ${most}.`;
  }
  if (settled === null)
    return `${name} is the top prediction ${after(first)}, and ${ordinal(last)} at the end.`;
  if (settled === first) return `${name} is the top prediction from ${from(first)} on.`;
  const when = `first ${after(first)}, then from ${from(settled)} on`;
  return `${name} is the top prediction ${when}.`;
}

/** Part of one stage of a flat (n_stages, n) array. @param {FrameArray} array @param {number} stage */
export const ofStage = ({ shape: [, n], values }, stage) =>
  values.subarray(stage * n, (stage + 1) * n);
