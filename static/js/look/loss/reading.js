// Losses of a text. Loss is −ln p of a token given those before it, in nats.

import { tokenLabel } from "../../ui/format.js";

/** Upper end of the colour scale and the histogram, in nats; larger losses are clipped. */
export const MAX_NATS = 8;
export const BIN_NATS = 0.5;
const LN2 = Math.log(2);
const PART = "part of a character";


/** A token's text on one line; its bytes if they are no valid text on their own. @param {PlainToken} token */
export function labelOf({ text, bytes, eos }) {
  if (bytes && text.includes("\uFFFD")) return `byte ${bytes.replace(/..(?!$)/g, "$& ")}`;
  return tokenLabel(text, eos ? "end of text" : PART);
}

/**
 * Add the engine's answer to `losses` to the tokens ({id, text, …}) of a text.
 *
 * @param {PlainToken[]} tokens
 * @param {FrameAnswer} answer
 * @returns {ScoredToken[]}
 */
export function withLosses(tokens, { arrays }) {
  const { logprob, rank, entropy, top_ids: ids, top_logprobs: logs } = arrays;
  const width = ids.shape[1];
  return tokens.map((token, i) => {
    if (i === 0) return { ...token, loss: null, rank: null, bits: null, top: null };
    const at = i - 1;
    const top = Array.from({ length: width }, (_, k) => ({
      id: ids.values[at * width + k],
      p: Math.exp(logs.values[at * width + k]),
    }));
    const scores = { rank: rank.values[at], bits: entropy.values[at], top };
    return { ...token, loss: -logprob.values[at], ...scores };
  });
}

/** @param {ScoredToken[]} tokens */
const known = (tokens) =>
  tokens.flatMap((token) => (token.loss === null ? [] : [{ ...token, loss: token.loss }]));
/** @param {number[]} values */
const sum = (values) => values.reduce((total, value) => total + value, 0);

/**
 * tokens      number of tokens with a loss
 * mean        mean loss in nats; its exponential is the perplexity (Jelinek et al. 1977)
 * perByte, perCharacter  bits, over tokens that add text; null if none does or sizes are unknown
 *
 * @param {ScoredToken[]} all
 */
export function figuresOf(all) {
  const tokens = known(all);
  const mean = sum(tokens.map(({ loss }) => loss)) / tokens.length;
  const writing = tokens.filter(({ eos, special }) => !eos && !special);
  const bits = sum(writing.map(({ loss }) => loss)) / LN2;
  const sized = writing.every(({ nBytes }) => nBytes !== null);
  /** @param {number} n */
  const per = (/** @type {number} */ n) => (sized && n ? bits / n : null);
  return {
    tokens: tokens.length,
    mean,
    perplexity: Math.exp(mean),
    perByte: per(sum(writing.map(({ nBytes }) => nBytes ?? 0))),
    perCharacter: per(sum(writing.map(({ nCharacters }) => nCharacters ?? 0))),
  };
}

/** Number of tokens per bin of losses; the last bin is open-ended. @param {ScoredToken[]} all */
export function binsOf(all) {
  const counts = Array(MAX_NATS / BIN_NATS).fill(0);
  for (const { loss } of known(all)) counts[binOf(loss)] += 1;
  return counts;
}

/** @param {number} loss */
export const binOf = (loss) =>
  Math.min(MAX_NATS / BIN_NATS - 1, Math.max(0, Math.floor(loss / BIN_NATS)));

/**
 * Positions, from `from` on, of the `n` tokens with the largest losses, largest first.
 *
 * @param {ScoredToken[]} all
 * @param {number} from
 * @param {number} n
 */
export function hardest(all, from, n) {
  const places = all.flatMap(({ loss }, i) => (i >= from && loss !== null ? [{ i, loss }] : []));
  return places.sort((a, b) => b.loss - a.loss).slice(0, n).map(({ i }) => i);
}

/**
 * Return the gradient of a token's loss on the logits: p − 1 on its own, p on every other (Bridle
 * 1990, "Probabilistic interpretation of feedforward classification network outputs"). Training
 * moves each logit against it. Rows {id, p, gradient, count}: the token, the most likely others,
 * and the rest as one (id null). The gradients sum to 0.
 *
 * @param {ScoredToken} token
 * @param {number} vocabulary
 * @param {number} most
 * @returns {GradientRow[]}
 */
export function gradientOf({ id, loss, top }, vocabulary, most) {
  const p = Math.exp(-(loss ?? NaN));
  const others = (top ?? []).filter((other) => other.id !== id).slice(0, most);
  const rest = Math.max(0, 1 - p - sum(others.map((other) => other.p)));
  return [
    { id, p, gradient: p - 1, count: 1 },
    ...others.map((other) => ({ ...other, gradient: other.p, count: 1 })),
    { id: null, p: rest, gradient: rest, count: vocabulary - 1 - others.length },
  ];
}
