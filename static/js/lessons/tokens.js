// Steps of "What is a token?".

import { showTokens } from "../look/tokens/tokens.js";
import { tokenize } from "../net/inspect.js";
import { count, plural } from "../ui/format.js";
import { tokensStep } from "../tour/reading.js";
import { plain, sentence, sentences, wordOf } from "../tour/words.js";

const WORD = "internationalisation";

/** @type {TourStep<ToPage.Tokenized>} */
export const frameStep = {
  title: "A frame of special tokens",
  open: "tokens",
  find: (walk) => walk.cut(),
  enter: tokensStep.enter,

  text(_walk, { tokens }) {
    const special = tokens.filter((token) => token.special);
    if (!special.length)
      return sentence`No special token was added: the model was given the text as it is, and continues it.`;
    return sentences(
      sentence`Some tokens stand for no text. Of these ${count(tokens.length)}, ${plural(special.length, "token")}
        ${plain(special.length === 1 ? "is special:" : "are special; the first is")} ${wordOf(special[0].text)}.`,
      tokens.some(({ role }) => role)
        ? sentence`The chat template puts them around each message. They tell the model who is speaking and where
          its own turn begins; without them it would probably continue your text.`
        : sentence`It tells the model that a text begins here.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".tk-list")]],
};

/** @type {TourStep<ToPage.Tokenized>} */
export const lengthStep = {
  title: "How long is a token?",
  open: "tokens",
  find: (walk) => walk.cut(),
  enter: tokensStep.enter,

  text(_walk, { plain: alone, n_chars: chars }) {
    const byLength = alone.tokens.toSorted((a, b) => a.text.length - b.text.length);
    const [shortest, longest] = [byLength[0], byLength[byLength.length - 1]];
    return sentences(
      sentence`Frequent words are usually one token each, rare ones are made up of several; in most tokenizers the space
        before a word is part of its token.`,
      sentence`Here the longest is ${wordOf(longest.text)} and the shortest ${wordOf(shortest.text)}; the average is
        ${(chars / alone.n_tokens).toFixed(1)} characters.`,
      sentence`Prices and limits of models are given in tokens, not in words.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".tk-list")]],
};

/** @type {TourStep<ToPage.Tokenized>} */
export const tokensExercise = {
  title: "Count it yourself",
  open: "tokens",
  find: () => tokenize({ text: WORD }),
  enter: () => showTokens("word"),

  text: () =>
    sentence`Replace the word in Tokens with ${wordOf(WORD)}; its tokens are made as you type. How many tokens has it
      in the end?`,

  exercise: (_walk, { plain: { n_tokens: n } }) => ({
    label: "tokens",
    measured: n,
    tolerance: 0,
    written: plural(n, "token"),
    hint: "Leave nothing but the word in the field, choose this model below it, and see the number of tokens there.",
  }),

  marks: () => [[...document.querySelectorAll(".tk-typed")]],
};
