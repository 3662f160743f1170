// Choice of the token, head and layer that the tour shows, by measured values.

import { nameOf } from "../look/attention/scores.js";
import { METRICS } from "../turns/metrics.js";

/** Entropy above this many bits makes a token no more interesting. */
const MAX_BITS = 2.6;
/** Tokens with a lower probability were drawn from the tail, which is not the tour's subject. */
const MIN_SHARE = 0.05;
/** Earlier tokens have little context to attend to. */
const MIN_INDEX = 3;
const LONG_LETTERS = 4;
/** With less entropy, in bits, no slider visibly moves the candidates. */
const OPEN_BITS = 1;

const WORD = /^\s?(\p{L}+)$/u;
const ENDS_IN_LETTER = /\p{L}$/u;
const STARTS_IN_LETTER = /^\p{L}/u;

/**
 * Return the number of the generated token to follow: a whole, rare, long word with close rivals,
 * preferably the most likely candidate, so that its rise over the layers can be seen. `tokens`:
 * `token` events of one run; the first is never chosen, because no generated token precedes it.
 * null when there are fewer than two.
 *
 * @param {Token[]} tokens
 */
export function chooseToken(tokens) {
  const uses = new Map();
  for (const { text } of tokens) uses.set(text, (uses.get(text) ?? 0) + 1);
  let best = null;
  for (let index = 1; index < tokens.length; index += 1) {
    const value = worth(tokens, index) / uses.get(tokens[index].text);
    if (best === null || value > best.value) best = { index, value };
  }
  return best?.index ?? null;
}

/**
 * Return the number of the first token from `from` on after which the next one had close rivals, so
 * that its candidates follow a slider; if none had, that with the closest. Looks at one run only.
 *
 * @param {Token[]} tokens
 * @param {number} from
 */
export function chooseWait(tokens, from) {
  let best = { index: from, bits: -1 };
  for (let index = from; index + 1 < tokens.length; index += 1) {
    const { segment, candidates } = tokens[index + 1];
    if (segment !== tokens[from].segment) break;
    const bits = bitsOf(candidates);
    if (bits >= OPEN_BITS) return index;
    if (bits > best.bits) best = { index, bits };
  }
  return best.index;
}

/** @param {Token[]} tokens @param {number} index */
function worth(tokens, index) {
  const token = tokens[index];
  const own = token.candidates.find(({ id }) => id === token.id)?.before ?? 0;
  return (
    (0.1 + Math.min(MAX_BITS, bitsOf(token.candidates))) *
    wordliness(tokens, index) *
    (own >= MIN_SHARE ? 1 : 0.2) *
    (token.candidates[0]?.id === token.id ? 1 : 0.35) *
    (token.stats ? 1 : 0.2) *
    (index >= MIN_INDEX ? 1 : 0.5)
  );
}

/** Entropy of the listed candidates in bits, renormalised. @param {ToPage.CandidateText[]} candidates */
function bitsOf(candidates) {
  const all = candidates.reduce((sum, { before }) => sum + before, 0);
  return candidates.reduce((bits, { before }) => {
    const share = before / all;
    return share > 0 ? bits - share * Math.log2(share) : bits;
  }, 0);
}

/**
 * 1 for a whole word of some length; less for a short one, a part of a word, or anything else.
 *
 * @param {Token[]} tokens
 * @param {number} index
 */
function wordliness(tokens, index) {
  const [, word] = WORD.exec(tokens[index].text) ?? [];
  if (!word) return 0.05;
  const begins = tokens[index].text !== word || !ENDS_IN_LETTER.test(tokens[index - 1].text);
  const ends = !STARTS_IN_LETTER.test(tokens[index + 1]?.text ?? "");
  if (!begins || !ends) return 0.1;
  return word.length >= LONG_LETTERS ? 1 : 0.3;
}

/**
 * Return the largest attention weight of all heads, {layer, head, at, weight}. Skips the first
 * token (attention sink) and the previous one (previous-token heads), if others exist. `weights`:
 * {shape: [n_layers, n_heads, n], values}.
 *
 * @param {FrameArray} weights
 */
export function hardestLook({ shape: [nLayers, nHeads, n], values }) {
  const from = n > 3 ? 1 : 0;
  const to = n > 3 ? n - 2 : n;
  let best = { layer: 0, head: 0, at: from, weight: -1 };
  for (let i = 0; i < nLayers * nHeads; i += 1)
    for (let at = from; at < to; at += 1)
      if (values[i * n + at] > best.weight)
        best = { layer: Math.floor(i / nHeads), head: i % nHeads, at, weight: values[i * n + at] };
  return best;
}

/** Head types the tour shows; a sink only if there is no other. @type {HeadPlace[][]} */
const HABITS = [["copy", "previous"], ["first"]];

/**
 * Return the head with the clearest pattern: {place, layer, head, score, named}, or null without
 * any scores. `scores` as returned by `meanScores` of look/attention/scores.js. `named`: the
 * pattern is clear enough to name the head after it; otherwise the closest head is returned.
 *
 * @param {HeadScores} scores
 * @param {number} nLayers
 * @param {number} nHeads
 */
export function habitOf(scores, nLayers, nHeads) {
  const all = Array.from({ length: nLayers * nHeads }, (_, i) => i);
  for (const places of HABITS) {
    const named = all.flatMap((i) => {
      const name = nameOf(scores, i);
      return name && places.includes(name.place) ? [{ i, ...name }] : [];
    });
    if (named.length) return habit(strongest(named), nHeads, true);
  }
  const near = HABITS.flat().flatMap((place) =>
    Array.from(scores[place] ?? [], (score, i) => ({ i, place, score })),
  );
  return near.length ? habit(strongest(near), nHeads, false) : null;
}

/** @param {{i: number, place: HeadPlace, score: number}[]} heads */
const strongest = (heads) => heads.reduce((best, one) => (one.score > best.score ? one : best));

/**
 * @param {{i: number, place: HeadPlace, score: number}} options
 * @param {number} nHeads
 * @param {boolean} named
 */
const habit = ({ i, place, score }, nHeads, named) => ({
  place,
  layer: Math.floor(i / nHeads),
  head: i % nHeads,
  score,
  named,
});

/**
 * The layer with the largest MLP update relative to the residual stream: {layer, ratio}.
 *
 * @param {ToPage.LayerStats[]} layers
 */
export function largestMlp(layers) {
  return layers.reduce(
    (best, stats, layer) => {
      const ratio = METRICS.update.value(stats, 1) ?? 0;
      return ratio > best.ratio ? { layer, ratio } : best;
    },
    { layer: 0, ratio: 0 },
  );
}
