// Watermark of an answer, from the events of its tokens: which are green, how many by chance, and
// how far the bias moved the distributions that they were drawn from.

import { isGreedy } from "../settings/sampling-settings.js";

/**
 * Sums over the tokens of an answer that were drawn with a watermark.
 *   n, green   tokens, and green ones, of those that a detector counts, which has only the text: not of the
 *              first ones, whose greenlists depend on the prompt, nor of the end of text
 *   expected, variance   of the number of green ones in a text without a watermark
 *   bits       KL divergence from the distributions without the bias; of `drawn` tokens, without the
 *              greedy ones, which have none
 *
 * @typedef {{at: number, n: number, green: number, expected: number, variance: number,
 *   bits: number, drawn: number}} GreenSums
 */

/** @type {WeakMap<Answer, GreenSums>} */
const known = new WeakMap();

/** Sums of an answer so far; null if it has no watermark. @param {Answer} answer */
export function watermarkOf(answer) {
  let sums = known.get(answer);
  if (!sums || sums.at > answer.tokens.length)
    sums = { at: 0, n: 0, green: 0, expected: 0, variance: 0, bits: 0, drawn: 0 };
  for (; sums.at < answer.tokens.length; sums.at += 1) add(sums, answer, answer.tokens[sums.at]);
  known.set(answer, sums);
  return sums.n ? sums : null;
}

/** @param {GreenSums} sums @param {Answer} answer @param {Token} token */
function add(sums, answer, token) {
  const { watermark } = token;
  if (!watermark) return;
  const settings = answer.settingsAt(token);
  const { greenlist_ratio: ratio, selfhash_width: width, watermark_bias: bias } = settings;
  const nHashed = width ? width - 1 : 1; // tokens before, which decide whether this one is green
  if (sums.at >= nHashed && !token.eos) {
    sums.n += 1;
    sums.green += Number(watermark.green);
    sums.expected += ratio;
    sums.variance += ratio * (1 - ratio);
  }
  if (isGreedy(settings)) return;
  sums.bits += divergence(watermark.probability, bias);
  sums.drawn += 1;
}

/** z of these sums: standard deviations above chance. @param {GreenSums} sums */
export const zOf = ({ green, expected, variance }) => (green - expected) / Math.sqrt(variance);

/**
 * KL divergence in bits of a draw with a watermark from the one without. With P, the probability of all
 * green tokens before the bias δ, and Z = P · e^δ + 1 − P, that of a green token grows by e^δ / Z, and of
 * the others by 1 / Z. So it is P · e^δ / Z · δ − ln Z nats.
 *
 * @param {number} probability
 * @param {number} bias
 */
export function divergence(probability, bias) {
  const green = probability * Math.exp(bias);
  const whole = green + 1 - probability;
  return ((green / whole) * bias - Math.log(whole)) / Math.LN2;
}
