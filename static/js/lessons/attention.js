// Steps of "What does attention look at?".

import { showForwardLine } from "../look/forward/forward.js";
import { chooseHead } from "../tour/layers.js";
import { hardestLook } from "../tour/choose.js";
import { count, figure } from "../ui/format.js";
import { sentence, sentences, share, wordOf } from "../tour/words.js";

/** A head, a token that it looks at, and its forward pass. @typedef {ReturnType<typeof hardestLook> & {answer: FrameAnswer}} Scored */

/** @type {TourStep<Scored>} */
export const scoreStep = {
  title: "A query meets a key",
  open: "forward",

  async find(walk) {
    const look = hardestLook(await walk.attention());
    return { ...look, answer: await walk.forward(look.layer, look.head) };
  },

  at: ({ index }, { layer }) => ({ index: index - 1, row: { layer, part: 0 } }),
  enter: (_walk, { head }) => showForwardLine("scores", head),

  text({ before, texts, hello }, { layer, head, at, weight, answer: { arrays, info } }) {
    const key = at - info.first_key;
    const { head_dim: width } = hello.model;
    const isRoot = Math.abs(info.scale * Math.sqrt(width) - 1) < 1e-3;
    const scaled = isRoot
      ? sentence`divided by the square root of ${count(width)}, this is`
      : sentence`multiplied by ${figure(info.scale)}, the scale of this model, this is`;
    return sentences(
      sentence`Every head has a query, made from the vector of ${before}, and a key for each token so far, of
        ${count(width)} numbers each. Their dot product is an attention score: how well the two match.`,
      sentence`In head ${head} of layer ${layer} the key of ${wordOf(texts[at])} gives
        ${figure(arrays.dots.values[key])}; ${scaled}
        ${figure(arrays.scores.values[key])}. After softmax, its attention weight is ${share(weight)}.`,
    );
  },

  marks: () => [[...document.querySelectorAll('.fw-lines [data-line="scores"]')]],
};

/** The head that looks hardest at the first token. @type {TourStep<{layer: number, head: number, first: number}>} */
export const attentionExercise = {
  title: "Read a head",
  open: "attention",

  async find(walk) {
    const { shape, values } = await walk.attention();
    const [nLayers, nHeads, n] = shape;
    const shares = Array.from({ length: nLayers * nHeads }, (_, i) => values[i * n]);
    const first = Math.max(...shares);
    const at = shares.indexOf(first);
    return { layer: Math.floor(at / nHeads), head: at % nHeads, first };
  },

  at: ({ index }, { layer }) => ({ index: index - 1, row: { layer, part: 0 } }),
  enter: (_walk, { layer, head }) => chooseHead(layer, head),

  text: ({ before, texts }, { layer, head }) =>
    sentence`Heads with nothing to look for often attend to the first token, here ${wordOf(texts[0])}. What share of its
      attention does head ${head} of layer ${layer} give to it at ${before}, in percent?`,

  exercise: (_walk, { first }) => ({
    label: "%",
    measured: 100 * first,
    tolerance: 0.01,
    written: share(first),
    hint: "Attention shows the share of each token below it.",
  }),

  marks: () => [[...document.querySelectorAll('.aw[data-at="0"]')]],
};
