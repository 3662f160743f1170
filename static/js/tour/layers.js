// Steps 3 to 7: what the layers do with the vector.

import { byId } from "../dom.js";
import { count, figure, ordinal, plural } from "../format.js";
import { lookAtHead } from "../look/attention.js";
import { placesOf } from "../look/attentionscores.js";
import { whenTop } from "../look/lensreading.js";
import { habitOf, hardestLook, largestMlp } from "./choose.js";
import { notMeasured } from "./missing.js";
import { plain, say, sentences, share, wordOf } from "./words.js";

const cell = (layer, column) =>
  byId("lrows").querySelector(`tr[data-layer="${layer}"] td:nth-child(${column})`);
const some = (...nodes) => nodes.filter(Boolean);

/** A word of the attention instrument, with its number under it, which may be wider. */
function wordAt(position) {
  const word = document.querySelector(`.aw[data-at="${position}"]`);
  const number = word?.querySelector("small");
  if (!number) return some(word);
  const digits = document.createRange();
  digits.selectNodeContents(number);
  return [word, digits];
}

export const grows = {
  title: "Every layer adds to it",
  open: null,
  sheet: "layers",
  metric: "norm",

  say({ hello, stats, token }) {
    const n = hello.model.n_layers;
    const start = say`The vector now passes ${plural(n, "layer")}, one after the other. A layer replaces nothing: it adds to what comes in, so this path is called the residual stream.`;
    if (!stats) return sentences(start, notMeasured("How much it grew", token));
    const { embedding, layers } = stats;
    const end = layers.at(-1).residual;
    return sentences(
      start,
      say`Here it went in ${figure(embedding)} long and came out ${figure(end)} long, ${figure(end / embedding)} times that.`,
    );
  },

  marks: () => [[...document.querySelectorAll("#lrows td:nth-child(5)")]],
};

export const looks = {
  title: "Attention looks back",
  open: "attention",

  async find(walk) {
    const weights = await walk.attention();
    return hardestLook(weights);
  },

  at: (walk, { layer }) => ({ index: walk.index - 1, row: { layer, part: 0 } }),
  enter: (_walk, { layer, head }) => chooseHead(layer, head),

  say({ hello, texts, row, before }, { layer, head, at, weight }) {
    const { n_layers: nLayers, n_heads: nHeads } = hello.model;
    const back = row - at;
    return sentences(
      say`Only attention lets a token see the others. Standing on ${before}, each of ${count(nLayers * nHeads)} heads shares its attention out over the ${count(row + 1)} tokens so far.`,
      say`Leaving out the first and the one just before, head ${head} of layer ${layer} looked hardest: ${share(weight)} of it went to ${wordOf(texts[at])}, ${plural(back, "token")} back.`,
    );
  },

  marks: (_walk, { at }) => [wordAt(at)],
};

function chooseHead(layer, head) {
  const before = lookAtHead({ layer, head });
  return () => lookAtHead(before, { layer, head });
}

const HABITS = {
  previous: "the token just before, whatever that is",
  copy: "what came after earlier copies of the same token, to write it again",
  first: "the very first token, where attention goes that is not needed",
};

export const habit = {
  title: "A head with a habit",
  open: "attention",

  async find(walk) {
    const { mean, here, n } = await walk.habits();
    const { n_layers: nLayers, n_heads: nHeads } = walk.hello.model;
    const found = habitOf(mean, nLayers, nHeads);
    if (!found) return { n };
    const own = here[found.place]?.[found.layer * nHeads + found.head] ?? null;
    return { ...found, n, own, where: placesOf(walk.ids.slice(0, walk.row + 1), walk.row)[found.place] };
  },

  at: (walk, { layer }) => ({ index: walk.index - 1, row: layer === undefined ? null : { layer, part: 0 } }),
  enter: (_walk, { layer, head }) => (layer === undefined ? undefined : chooseHead(layer, head)),

  say({ before }, { place, layer, head, score, own, n, named }) {
    if (place === undefined) return say`The context is too short here to tell the habits of heads apart.`;
    const what = plain(HABITS[place]);
    const times = plural(n, "token");
    return sentences(
      named
        ? say`Training gave some heads one job. Head ${head} of layer ${layer} looks at ${what}.`
        : say`No head did one thing so clearly here that it could be named after it. Nearest comes head ${head} of layer ${layer}, which looks at ${what}.`,
      own === null
        ? say`On average over the last ${times} it spent ${share(score)} of its attention there; for ${before} there is no such place.`
        : say`On average over the last ${times} it spent ${share(score)} of its attention there; standing on ${before}, ${share(own)}.`,
    );
  },

  /** The words it looks at here; where there is none, what the instrument says of the head. */
  marks: (_walk, { where }) =>
    where ? where.map(wordAt) : [[...document.querySelectorAll(".at-says")]],
};

export const mlp = {
  title: "The MLP works on it alone",
  open: null,
  sheet: "layers",
  metric: "update",

  at: ({ index, stats }) => ({
    index,
    row: stats ? { layer: largestMlp(stats.layers).layer, part: 1 } : null,
  }),

  say({ stats, token }) {
    const start = say`After attention, each layer has an MLP: a small network that sees this one vector and no other token, and again adds what it finds.`;
    if (!stats) return sentences(start, notMeasured("How much it added", token));
    const { layer, ratio } = largestMlp(stats.layers);
    return sentences(
      start,
      say`Layer ${layer} took the largest step: what its MLP added is ${ratio.toFixed(2)} times as long as the stream it left behind.`,
    );
  },

  marks: ({ stats }) => [stats ? some(cell(largestMlp(stats.layers).layer, 3)) : []],
};

/** The stage at which the answer shows: from where on it is the top guess, else where it came nearest. */
function stageOf(ranks) {
  const { first, settled } = whenTop(ranks);
  return settled ?? first ?? ranks.indexOf(Math.min(...ranks));
}

const from = (stage) => (stage ? say`from layer ${stage - 1} on` : say`from the embedding on`);
const after = (stage) => (stage ? say`after layer ${stage - 1}` : say`at the embedding`);

/** What the lens saw of the word. */
function reading(word, { ranks, stage, shares }) {
  const { first, settled } = whenTop(ranks);
  const here = say`with ${share(shares[stage])}`;
  const end = say`with ${share(shares.at(-1))}`;
  if (settled !== null)
    return stage === ranks.length - 1
      ? say`Only after layer ${stage - 1}, the last, is ${word} its first guess, ${end}.`
      : say`${word} is its first guess ${from(stage)}: there ${here}, at the end ${end}.`;
  const last = say`${ordinal(ranks.at(-1))} at the end, ${end}. The draw took it all the same.`;
  if (first !== null) return say`${word} is its first guess ${after(stage)}, ${here}, but ${last}`;
  return stage === ranks.length - 1
    ? say`${word} never is its first guess: it rises to ${last}`
    : say`${word} never is its first guess: it is ${ordinal(ranks[stage])} ${after(stage)}, and ${last}`;
}

export const appears = {
  title: "The answer appears",
  open: "lens",

  async find(walk) {
    const { arrays } = await walk.lens();
    const ranks = [...arrays.rank.values];
    const stage = stageOf(ranks);
    return { ranks, stage, shares: arrays.probability.values };
  },

  at: ({ index }, { stage }) => ({ index, row: stage ? { layer: stage - 1, part: 0 } : null }),

  say: ({ word }, found) =>
    sentences(
      say`What if the model had to answer early? The lens reads the stream after every layer as if it were the last.`,
      reading(word, found),
    ),

  marks: (_walk, { stage }) => [some(document.querySelector(`.ln-grid tr[data-stage="${stage}"]`))],
};
