// Steps 3 to 7: the residual stream, attention, the MLP and the logit lens.

import { byId } from "../ui/dom.js";
import { count, figure, ordinal, plural } from "../ui/format.js";
import { showHeads } from "../look/attention/attention.js";
import { selectHead } from "../look/attention/heads.js";
import { placesOf } from "../look/attention/scores.js";
import { showTokenLens } from "../look/lens/lens.js";
import { whenTop } from "../look/lens/reading.js";
import { habitOf, hardestLook, largestMlp } from "./choose.js";
import { notMeasured } from "./missing.js";
import { plain, sentence, sentences, share, wordOf } from "./words.js";

/**
 * A head and how it attends; without `place` the context is too short to tell.
 *
 * @typedef {{n: number, place?: undefined, layer?: undefined, head?: undefined, score?: undefined,
 *   own?: undefined, named?: undefined, where?: undefined}} NoHead
 * @typedef {NoHead | {n: number, place: HeadPlace, layer: number, head: number, score: number,
 *   own: number | null, named: boolean, where: number[] | null}} HeadFound
 */

/** Ranks and shares of the token over the stages. */
/** @typedef {{ranks: number[], stage: number, shares: Float32Array | Uint32Array}} LensFound */

/** @param {number} layer @param {number} column */
const cell = (layer, column) =>
  byId("lrows").querySelector(`tr[data-layer="${layer}"] td:nth-child(${column})`);
/** @param {(Element | null)[]} nodes */
const some = (...nodes) => nodes.filter((node) => node !== null);

/**
 * A token of the attention instrument and its number below, which may be wider.
 *
 * @param {number} position
 * @returns {Outlined[]}
 */
function wordAt(position) {
  const word = document.querySelector(`.aw[data-at="${position}"]`);
  const number = word?.querySelector("small");
  if (!word || !number) return some(word);
  const digits = document.createRange();
  digits.selectNodeContents(number);
  return [word, digits];
}

/** @type {TourStep} */
export const residualStep = {
  title: "Every layer adds to the vector",
  open: null,
  sheet: "layers",
  metric: "norm",

  text({ hello, stats, token }) {
    const n = hello.model.n_layers;
    const start = sentence`The vector now passes ${plural(n, "layer")}, one after the other. A
      layer does not replace it but adds to it: this running sum is the residual stream.`;
    if (!stats) return sentences(start, notMeasured("Its growth", token));
    const embedding = stats.embedding ?? NaN;
    const end = stats.layers.at(-1)?.residual ?? NaN;
    return sentences(
      start,
      sentence`Here its norm grew from ${figure(embedding)} to ${figure(end)}, a factor of
        ${figure(end / embedding)}.`,
    );
  },

  marks: () => [[...document.querySelectorAll("#lrows td:nth-child(5)")]],
};

/** @type {TourStep<ReturnType<typeof hardestLook>>} */
export const attentionStep = {
  title: "Attention looks back",
  open: "attention",

  async find(walk) {
    const weights = await walk.attention();
    return hardestLook(weights);
  },

  at: (walk, { layer }) => ({ index: walk.index - 1, row: { layer, part: 0 } }),
  enter: (_walk, { layer, head }) => chooseHead(layer, head),

  text({ hello, texts, row, before }, { layer, head, at, weight }) {
    const { n_layers: nLayers, n_heads: nHeads } = hello.model;
    const back = row - at;
    return sentences(
      sentence`Only attention lets a token see the others. At ${before}, each of
        ${count(nLayers * nHeads)} heads distributes its attention over the ${count(row + 1)}
        tokens so far.`,
      sentence`Not counting the first token and the previous one, the largest weight is in head
        ${head} of layer ${layer}: ${share(weight)} on ${wordOf(texts[at])},
        ${plural(back, "token")} back.`,
    );
  },

  marks: (_walk, { at }) => [wordAt(at)],
};

/** Select a head in Attention; returns a function that undoes it. @param {number} layer @param {number} head */
export function chooseHead(layer, head) {
  showHeads();
  const before = selectHead({ layer, head });
  return () => selectHead(before, { layer, head });
}

/** What the head types attend to. @type {Record<HeadPlace, string>} */
const HABITS = {
  previous: "the previous token, whatever it is (a previous-token head)",
  copy: "what followed earlier copies of the same token (an induction head)",
  first: "the first token (an attention sink)",
  self: "the token itself",
};

/** @type {TourStep<HeadFound>} */
export const headStep = {
  title: "A head with one job",
  open: "attention",

  async find(walk) {
    const { mean, here, n } = await walk.habits();
    const { n_layers: nLayers, n_heads: nHeads } = walk.hello.model;
    const found = habitOf(mean, nLayers, nHeads);
    if (!found) return { n };
    const own = here?.[found.place]?.[found.layer * nHeads + found.head] ?? null;
    const where = placesOf(walk.ids.slice(0, walk.row + 1), walk.row)[found.place];
    return { ...found, n, own, where };
  },

  at: (walk, { layer }) => ({
    index: walk.index - 1,
    row: layer === undefined ? null : { layer, part: 0 },
  }),
  enter: (_walk, { layer, head }) =>
    layer === undefined ? undefined : chooseHead(layer, head),

  text({ before }, { place, layer, head, score, own, n, named }) {
    if (place === undefined) return sentence`The context is too short here to tell heads apart.`;
    const what = plain(HABITS[place]);
    const times = plural(n, "token");
    return sentences(
      named
        ? sentence`Training gave some heads one job. Head ${head} of layer ${layer} attends to
          ${what}.`
        : sentence`No head clearly has one job here. Head ${head} of layer ${layer} comes closest:
          it attends to ${what}.`,
      own === null
        ? sentence`On average over the last ${times}, ${share(score)} of its attention went there;
          at ${before} there is no such token.`
        : sentence`On average over the last ${times}, ${share(score)} of its attention went there;
          at ${before}, ${share(own)}.`,
    );
  },

  /** The tokens it attends to; without any, the instrument's summary of the head. */
  marks: (_walk, { where }) =>
    where ? where.map(wordAt) : [[...document.querySelectorAll(".at-summary")]],
};

/** @type {TourStep} */
export const mlpStep = {
  title: "The MLP sees one token",
  open: null,
  sheet: "layers",
  metric: "update",

  at: ({ index, stats }) => ({
    index,
    row: stats ? { layer: largestMlp(stats.layers).layer, part: 1 } : null,
  }),

  text({ stats, token }) {
    const start = sentence`After attention, each layer has an MLP: a small network that sees only
      this one vector, no other token, and adds its result.`;
    if (!stats) return sentences(start, notMeasured("Its update", token));
    const { layer, ratio } = largestMlp(stats.layers);
    return sentences(
      start,
      sentence`The largest update is in layer ${layer}: its MLP added ${ratio.toFixed(2)} times the
        norm of the residual stream.`,
    );
  },

  marks: ({ stats }) => [stats ? some(cell(largestMlp(stats.layers).layer, 3)) : []],
};

/**
 * Stage to show: the one from which on the token is the top prediction, else that of its best rank.
 *
 * @param {number[]} ranks
 */
function stageOf(ranks) {
  const { first, settled } = whenTop(ranks);
  return settled ?? first ?? ranks.indexOf(Math.min(...ranks));
}

/** @param {number} stage */
const from = (stage) =>
  stage ? sentence`from layer ${stage - 1} on` : sentence`from the embedding on`;
/** @param {number} stage */
const after = (stage) =>
  stage ? sentence`after layer ${stage - 1}` : sentence`at the embedding`;

/** Describe the token's rank over the layers. @param {SentencePart} word @param {LensFound} found */
function reading(word, { ranks, stage, shares }) {
  const { first, settled } = whenTop(ranks);
  const here = share(shares[stage]);
  const end = share(shares.at(-1) ?? NaN);
  if (settled !== null)
    return stage === ranks.length - 1
      ? sentence`${word} becomes the top prediction only after the last layer, ${stage - 1}, with
        ${end}.`
      : sentence`${word} is the top prediction ${from(stage)}: ${here} there, ${end} at the end.`;
  const last = sentence`${ordinal(ranks[ranks.length - 1])} at the end, with ${end}. It was sampled all the
    same.`;
  if (first !== null)
    return sentence`${word} is the top prediction ${after(stage)}, with ${here}, but ${last}`;
  return stage === ranks.length - 1
    ? sentence`${word} is never the top prediction: it rises to ${last}`
    : sentence`${word} is never the top prediction: it is ${ordinal(ranks[stage])} ${after(stage)},
      and ${last}`;
}

/** @type {TourStep<LensFound>} */
export const lensStep = {
  title: "The prediction appears",
  open: "lens",

  async find(walk) {
    const { arrays } = await walk.lens();
    const ranks = [...arrays.rank.values];
    const stage = stageOf(ranks);
    return { ranks, stage, shares: arrays.probability.values };
  },

  at: ({ index }, { stage }) => ({ index, row: stage ? { layer: stage - 1, part: 0 } : null }),
  enter: () => showTokenLens(),

  text: ({ word }, found) =>
    sentences(
      sentence`What if the model had to answer early? The logit lens reads the residual stream
        after every layer as if it were the last.`,
      reading(word, found),
    ),

  marks: (_walk, { stage }) => [some(document.querySelector(`.ln-grid tr[data-stage="${stage}"]`))],
};
