// Steps 1 and 2: text to tokens, tokens to vectors.

import { showTokens } from "../look/tokens/tokens.js";
import { all } from "../ui/dom.js";
import { count, figure, plural } from "../ui/format.js";
import { notMeasured } from "./missing.js";
import { plain, sentence, sentences } from "./words.js";

/** @type {TourStep<ToPage.Tokenized>} */
export const tokensStep = {
  title: "Text becomes tokens",
  open: "tokens",
  find: (walk) => walk.cut(),

  /** Show the last request, which the run used, if the instrument shows the composer's draft. */
  enter() {
    const restore = showTokens("prompt");
    const [draft, last] = /** @type {HTMLInputElement[]} */ (all(document, "[name=look-prompt]"));
    if (last.checked || last.disabled) return restore;
    last.click();
    return () => {
      draft.click();
      restore?.();
    };
  },

  text({ segment, hello, token, word }, { n_chars: chars, plain: alone, tokens }) {
    const own = alone.n_tokens;
    const nAll = segment.prompt.length;
    const source = tokens.some(({ role }) => role) ? "The conversation" : "The prompt";
    const given = plain(source);
    return sentences(
      sentence`A model does not read letters but tokens: pieces of text, each with a number.`,
      nAll === own
        ? sentence`${given} has ${count(chars)} characters, which are ${plural(nAll, "token")}.`
        : sentence`${given} has ${count(chars)} characters, which are ${plural(own, "token")}; with
          the special tokens around it, ${count(nAll)}.`,
      hello.model.vocab_size
        ? sentence`We follow one generated token: ${word}, number ${count(token.id)} of the
          ${count(hello.model.vocab_size)} in the vocabulary.`
        : sentence`We follow one generated token: ${word}.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".tk-list")]],
};

/** @type {TourStep} */
export const embeddingStep = {
  title: "A token becomes a vector",
  open: "weights",

  text({ hello, before, word, stats, token }) {
    const { hidden_size: width, vocab_size: vocab } = hello.model;
    return sentences(
      sentence`For each of its ${count(vocab)} tokens the model has learned a vector of
        ${count(width)} numbers, the embedding.`,
      sentence`To choose ${word} it looked up the embedding of the previous token, ${before}.`,
      stats
        ? sentence`Its norm is ${figure(stats.embedding ?? NaN)}; this vector is all the layers receive.`
        : notMeasured("Its norm", token),
    );
  },

  marks: () => [
    [...document.querySelectorAll(".wt-cell.embedding:not(.tied)")],
    [...document.querySelectorAll("#lrows tr.end:last-child td:nth-child(5)")],
  ],
};
