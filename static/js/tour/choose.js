// Which token, head and layer of a run the walk speaks about: chosen by what was measured.

import { nameOf } from "../look/attentionscores.js";

/** A distribution wider than this many bits is not more interesting: anything could have come. */
const MOST_BITS = 2.6;
/** A token that had less than this share was drawn from the tail, which the walk is not about. */
const LEAST_SHARE = 0.05;
/** Before this one there is little to look back at. */
const LEAST_INDEX = 3;
const LONG_LETTERS = 4;

const WORD = /^\s?(\p{L}+)$/u;
const ENDS_IN_LETTER = /\p{L}$/u;
const STARTS_IN_LETTER = /^\p{L}/u;

/**
 * Number of the written token to follow: a whole, rare, long word that had rivals, and was a likely one
 * itself, or better the likeliest, so that the layers can be seen to come to it. `tokens`: `token` events of one generation; the first is never chosen, because
 * no written token stands before it. null when there are fewer than two.
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

function worth(tokens, index) {
  const token = tokens[index];
  const own = token.candidates.find(({ id }) => id === token.id)?.before ?? 0;
  return (
    (0.1 + Math.min(MOST_BITS, bitsOf(token.candidates))) *
    wordliness(tokens, index) *
    (own >= LEAST_SHARE ? 1 : 0.2) *
    (token.candidates[0]?.id === token.id ? 1 : 0.35) *
    (token.stats ? 1 : 0.2) *
    (index >= LEAST_INDEX ? 1 : 0.5)
  );
}

/** Entropy of the most likely tokens, in bits, as if they were all. */
function bitsOf(candidates) {
  const all = candidates.reduce((sum, { before }) => sum + before, 0);
  return candidates.reduce((bits, { before }) => {
    const share = before / all;
    return share > 0 ? bits - share * Math.log2(share) : bits;
  }, 0);
}

/** 1: a whole word of some length; less for a short one, for a part of a word, for anything else. */
function wordliness(tokens, index) {
  const [, word] = WORD.exec(tokens[index].text) ?? [];
  if (!word) return 0.05;
  const begins = tokens[index].text !== word || !ENDS_IN_LETTER.test(tokens[index - 1].text);
  const ends = !STARTS_IN_LETTER.test(tokens[index + 1]?.text ?? "");
  if (!begins || !ends) return 0.1;
  return word.length >= LONG_LETTERS ? 1 : 0.3;
}

/**
 * The largest weight of all heads on an earlier token that is not the first (where attention goes
 * that is not needed) nor the one just before (which many heads look at whatever it is); on any
 * token where there is no other. `weights` {shape: [n_layers, n_heads, n], values}.
 * Returns {layer, head, at, weight}.
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

/** The habits the walk tells of; a sink only where no head has another one. */
const HABITS = [["copy", "previous"], ["first"]];

/**
 * The head that keeps most to one place: {place, layer, head, score, named}. `scores` as `meanScores`
 * of attentionscores.js gives them. `named`: it does so clearly enough to be named after it; if none
 * does, the nearest to it. null when there are no places at all.
 */
export function habitOf(scores, nLayers, nHeads) {
  const all = Array.from({ length: nLayers * nHeads }, (_, i) => i);
  for (const places of HABITS) {
    const named = all.map((i) => ({ i, ...nameOf(scores, i) })).filter(({ place }) => places.includes(place));
    if (named.length) return habit(strongest(named), nHeads, true);
  }
  const some = HABITS.flat().filter((place) => scores[place]);
  const near = some.flatMap((place) => all.map((i) => ({ i, place, score: scores[place][i] })));
  return near.length ? habit(strongest(near), nHeads, false) : null;
}

const strongest = (heads) => heads.reduce((best, one) => (one.score > best.score ? one : best));

const habit = ({ i, place, score }, nHeads, named) => ({
  place,
  layer: Math.floor(i / nHeads),
  head: i % nHeads,
  score,
  named,
});

/** The layer whose MLP added most, beside the stream that it left: {layer, ratio}. */
export function largestMlp(layers) {
  return layers.reduce(
    (best, { mlp, residual }, layer) =>
      residual > 0 && mlp / residual > best.ratio ? { layer, ratio: mlp / residual } : best,
    { layer: 0, ratio: 0 },
  );
}
