// Steps of "Why decoder-only?".

import { showHeads } from "../look/attention/attention.js";
import { showCacheView } from "../look/cache/cache.js";
import { count, plural } from "../ui/format.js";
import { plain, sentence, sentences, wordOf } from "../tour/words.js";

/** @type {TourStep<FrameArray>} */
export const maskStep = {
  title: "Nobody looks ahead",
  open: "attention",
  find: (walk) => walk.attention(),
  at: ({ index }) => ({ index: index - 1, row: null }),
  enter: () => showHeads(),

  text({ before, row, texts }, { shape: [, , n] }) {
    return sentences(
      sentence`In an encoder every token sees the whole sentence. In a decoder a token sees only itself and
        the tokens before it: this is the causal mask.`,
      sentence`At ${before} each head has ${plural(n, "weight")}, one for each token up to it; at ${wordOf(texts[row - 1])}
        it had ${count(n - 1)}. Later tokens have none.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".aw")].slice(0, 1)],
};

/** @type {TourStep} */
export const onePassStep = {
  title: "Every position is a prediction",
  open: "loss",

  text({ answer, segment }) {
    const n = segment.prompt.length + answer.tokens.length;
    const sure = answer.tokens.filter(({ probability }) => (probability ?? 0) > 0.5).length;
    return sentences(
      sentence`Because no token sees the next one, one pass predicts the next token at every position at once: these
        ${plural(n, "token")} give ${plural(n - 1, "prediction")}, and the text itself says which were right.`,
      sentence`So a decoder learns from every token of its training text; an encoder such as BERT predicts only those that
        were masked, about 15 %. Here the model gave ${count(sure)} of its own
        ${plural(answer.tokens.length, "token")} a probability above one half.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".ls-text")]],
};

/** @type {TourStep} */
export const decoderExercise = {
  title: "Half of the square",
  open: "cache",
  enter: () => showCacheView("run"),

  text({ row }) {
    const n = row + 1;
    return sentences(
      sentence`The price is context: an encoder compares every token with every other one, a decoder only with earlier ones.
        But that is only about half of the work.`,
      sentence`Over the first ${plural(n, "token")} of this text, how many pairs of a query and a key does
        ${plain("one head")} compare? Each token is compared with itself, too.`,
    );
  },

  exercise({ row }) {
    const n = row + 1;
    const pairs = (n * (n + 1)) / 2;
    return {
      label: "pairs",
      measured: pairs,
      tolerance: 0,
      written: `1 + 2 + … + ${count(n)} = ${count(pairs)}; an encoder compares ${count(n * n)}`,
      hint: `The first token has 1 pair, the second 2, and so on up to the last, which has ${count(n)}.`,
    };
  },

  marks: () => [[...document.querySelectorAll(".kv-chart")]],
};
