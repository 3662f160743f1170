// Steps of "Why decoder-only?".

import { showCacheView } from "../look/cache/cache.js";
import { count, plural } from "../ui/format.js";
import { plain, sentence, sentences, wordOf } from "../tour/words.js";

/** @type {TourStep<FrameArray>} */
export const maskStep = {
  title: "Nobody looks ahead",
  open: "attention",
  find: (walk) => walk.attention(),
  at: ({ index }) => ({ index: index - 1, row: null }),

  text({ before, row, texts }, { shape: [, , n] }) {
    return sentences(
      sentence`In an encoder every token sees the whole sentence. In a decoder a token sees itself and what stands before
        it: the causal mask.`,
      sentence`At ${before} each head has ${plural(n, "weight")}, one for each token up to it; at ${wordOf(texts[row - 1])}
        it had ${count(n - 1)}. There is none for a later one.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".aw")].slice(0, 1)],
};

/** @type {TourStep} */
export const onePassStep = {
  title: "Every place is an exercise",
  open: "loss",

  text({ answer, segment }) {
    const n = segment.prompt.length + answer.tokens.length;
    const sure = answer.tokens.filter(({ probability }) => (probability ?? 0) > 0.5).length;
    return sentences(
      sentence`Because no token sees the next one, the model can be asked at every place at once what comes next: one
        pass over these ${plural(n, "token")} gives ${plural(n - 1, "prediction")} that the text itself checks.`,
      sentence`That is why training needs nothing but text. Here the model gave ${count(sure)} of its own
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
      sentence`The price: an encoder compares every token with every other, and a decoder only with earlier ones.`,
      sentence`Over the first ${plural(n, "token")} of this text, how many pairs of a query and a key does
        ${plain("one head")} compare, each token with itself included?`,
    );
  },

  exercise({ row }) {
    const n = row + 1;
    const pairs = (n * (n + 1)) / 2;
    return {
      label: "pairs",
      measured: pairs,
      tolerance: 0,
      written: `1 + 2 + … + ${count(n)} = ${count(pairs)}, of ${count(n * n)} in an encoder`,
      hint: `The first token compares 1, the second 2, and so on to the last, which compares ${count(n)}.`,
    };
  },

  marks: () => [[...document.querySelectorAll(".kv-chart")]],
};
