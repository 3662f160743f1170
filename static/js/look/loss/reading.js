// What a model's losses on a text say. Loss here is −ln p of a token, in nats, given those before it.

import { tokenLabel } from "../format.js";

/** The scale of colours and of the histogram: nats from nothing to this; what is beyond lies at its end. */
export const MOST_NATS = 8;
export const BIN_NATS = 0.5;
const LN2 = Math.log(2);
const PART = "part of a character";

/**
 * @typedef {{id: number, text: string, nBytes: number, nCharacters: number, loss: number?,
 *   rank: number?, bits: number?, top: {id: number, p: number}[]?}} Judged
 * nBytes, nCharacters  that it adds to the text; null where it is not known if it adds any
 * loss   null for the first, which nothing comes before, and where it is not known
 * bits   entropy of what was expected
 */

/** A token's text on one line; the bytes of one that is no text alone. */
export function labelOf({ text, bytes, eos }) {
  if (bytes && text.includes("\uFFFD")) return `byte ${bytes.replace(/..(?!$)/g, "$& ")}`;
  return tokenLabel(text, eos ? "end of text" : PART);
}

/** Tokens ({id, text, …}, all of the text) with what the engine answered to `losses` about them. */
export function judged(tokens, { arrays }) {
  const { logprob, rank, entropy, top_ids: ids, top_logprobs: logs } = arrays;
  const width = ids.shape[1];
  return tokens.map((token, i) => {
    if (i === 0) return { ...token, loss: null, rank: null, bits: null, top: null };
    const at = i - 1;
    const top = Array.from({ length: width }, (_, k) => ({
      id: ids.values[at * width + k],
      p: Math.exp(logs.values[at * width + k]),
    }));
    return { ...token, loss: -logprob.values[at], rank: rank.values[at], bits: entropy.values[at], top };
  });
}

const known = (tokens) => tokens.filter(({ loss }) => loss !== null);
const sum = (values) => values.reduce((total, value) => total + value, 0);

/**
 * tokens      that were judged
 * mean        loss in nats; its exponential is the perplexity (Jelinek et al. 1977)
 * perByte, perCharacter  bits, of the tokens that add text; null when none does or it is not known
 */
export function figuresOf(all) {
  const tokens = known(all);
  const mean = sum(tokens.map(({ loss }) => loss)) / tokens.length;
  const writing = tokens.filter(({ eos, special }) => !eos && !special);
  const bits = sum(writing.map(({ loss }) => loss)) / LN2;
  const sized = writing.every(({ nBytes }) => nBytes !== null);
  const per = (n) => (sized && n ? bits / n : null);
  return {
    tokens: tokens.length,
    mean,
    perplexity: Math.exp(mean),
    perByte: per(sum(writing.map(({ nBytes }) => nBytes))),
    perCharacter: per(sum(writing.map(({ nCharacters }) => nCharacters))),
  };
}

/** How many tokens have a loss in each bin; the last one takes all beyond. */
export function binsOf(all) {
  const counts = Array(MOST_NATS / BIN_NATS).fill(0);
  for (const { loss } of known(all)) counts[binOf(loss)] += 1;
  return counts;
}

export const binOf = (loss) => Math.min(MOST_NATS / BIN_NATS - 1, Math.max(0, Math.floor(loss / BIN_NATS)));

/** Places, from `from` on, of the `n` tokens with the largest losses, largest first. */
export function hardest(all, from, n) {
  const places = all.map((_, i) => i).filter((i) => i >= from && all[i].loss !== null);
  return places.sort((a, b) => all[b].loss - all[a].loss).slice(0, n);
}

/**
 * The gradient of a token's loss on the logits: p − 1 on its own, p on every other (Bridle 1990,
 * "Probabilistic interpretation of feedforward classification network outputs"). A step of training
 * moves each logit against it. Rows {id, p, gradient, count}: the token, the most likely others, and
 * the rest in one (id null). The gradients add up to 0.
 */
export function gradientOf({ id, loss, top }, vocabulary, most) {
  const p = Math.exp(-loss);
  const others = top.filter((other) => other.id !== id).slice(0, most);
  const rest = Math.max(0, 1 - p - sum(others.map((other) => other.p)));
  return [
    { id, p, gradient: p - 1, count: 1 },
    ...others.map((other) => ({ ...other, gradient: other.p, count: 1 })),
    { id: null, p: rest, gradient: rest, count: vocabulary - 1 - others.length },
  ];
}
