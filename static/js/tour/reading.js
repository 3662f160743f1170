// Steps 1 and 2: text becomes tokens, and tokens become vectors.

import { count, figure, plural } from "../format.js";
import { notMeasured } from "./missing.js";
import { plain, say, sentences } from "./words.js";

export const cut = {
  title: "Text becomes tokens",
  open: "tokens",
  find: (walk) => walk.cut(),

  /** The instrument shows the composer's draft where there is one; the run read the last request. */
  enter() {
    const [draft, last] = document.querySelectorAll("[name=look-prompt]");
    if (last.checked || last.disabled) return undefined;
    last.click();
    return () => draft.click();
  },

  say({ segment, hello, token, word }, { n_chars: chars, plain: alone, tokens }) {
    const own = alone.n_tokens;
    const all = segment.prompt.length;
    const given = plain(tokens.some(({ role }) => role) ? "What was written" : "The prompt");
    return sentences(
      say`A model reads no letters: it reads tokens, pieces of text that have a number.`,
      all === own
        ? say`${given} has ${count(chars)} characters, which are ${plural(all, "token")}.`
        : say`${given} has ${count(chars)} characters, which are ${plural(own, "token")}; with what the model wants around it, it read ${count(all)}.`,
      say`We follow one that it wrote then: ${word}, number ${count(token.id)} of the ${count(hello.model.vocab_size)} it knows.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".tk-list")]],
};

export const vector = {
  title: "A token becomes a vector",
  open: "weights",

  say({ hello, before, word, stats, token }) {
    const { hidden_size: width, vocab_size: vocab } = hello.model;
    return sentences(
      say`For each of its ${count(vocab)} tokens the model has learned a row of ${count(width)} numbers, the embedding.`,
      say`To choose ${word} it stood on the token before, ${before}, and fetched that row.`,
      stats
        ? say`Read as an arrow, it is ${figure(stats.embedding)} long; this is all the layers get.`
        : notMeasured("How long it is", token),
    );
  },

  marks: () => [
    [...document.querySelectorAll(".wt-cell.embedding:not(.tied)")],
    [...document.querySelectorAll("#lrows tr.end:last-child td:nth-child(5)")],
  ],
};
