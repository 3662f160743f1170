// Steps of "What is a KV cache?".

import { showCacheView } from "../look/cache/cache.js";
import { kvShape } from "../look/cache/kv-size.js";
import { bytes, count, figure, plural } from "../ui/format.js";
import { sentence, sentences } from "../tour/words.js";

const N_TOKENS = 1000;

/** @type {TourStep} */
export const withoutCacheStep = {
  title: "Without it",
  open: "cache",
  at: ({ index }) => ({ index: index - 1, row: null }),
  enter: () => showCacheView("run"),

  text({ segment, answer, row, word }) {
    const { length: nPrompt } = segment.prompt;
    const nWritten = answer.tokens.length;
    const withCache = nPrompt + nWritten - 1;
    // Each step would process all tokens before the one it writes.
    const without = Array.from({ length: nWritten }, (_, i) => nPrompt + i).reduce((sum, n) => sum + n, 0);
    return sentences(
      sentence`The keys and values of a token never change, because no token sees what comes after it. Without a cache they
        would be computed again in every step: ${plural(row + 1, "token")} through all layers for ${word} alone.`,
      sentence`For the whole text, ${count(without)} tokens would go through the layers instead of ${count(withCache)}:
        ${figure(without / withCache)} times the work, and the longer the text, the worse it gets.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".kv-chart")]],
};

/** @type {TourStep} */
export const sharedHeadsStep = {
  title: "Its price is memory",
  open: "cache",

  text({ hello }) {
    const { n_heads: heads, n_kv_heads: kvHeads, n_layers: layers, head_dim: width } = hello.model;
    const { perToken, bits, stored } = kvShape(hello);
    return sentences(
      sentence`A token has a key and a value of ${count(width)} numbers for each of ${plural(kvHeads, "KV head")} in
        ${plural(layers, "layer")}, at ${figure(bits)} bits each (${stored}): ${bytes(perToken)}.`,
      kvHeads < heads
        ? sentence`The ${count(heads)} query heads share them, which is called grouped-query attention (GQA): if each had its
          own, the cache would be ${figure(heads / kvHeads)} times as large.`
        : sentence`Each of the ${count(heads)} query heads has keys and values of its own; in most newer models, several heads share them.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".kv-chart")]],
};

/** @type {TourStep} */
export const keptExercise = {
  title: "A longer text",
  open: "cache",

  text: () =>
    sentence`How much memory would the cache take for a text of ${count(N_TOKENS)} tokens if all of them are kept, in
      megabytes (millions of bytes)?`,

  exercise({ hello }) {
    const { perToken } = kvShape(hello);
    return {
      label: "MB",
      measured: (perToken * N_TOKENS) / 1e6,
      tolerance: 0.06,
      written: bytes(perToken * N_TOKENS),
      hint: `It is ${count(N_TOKENS)} times what one token takes.`,
    };
  },

  marks: () => [[...document.querySelectorAll(".kv-chart")]],
};
