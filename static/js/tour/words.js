// Sentences of the walk: text, and in it what was measured and what the model wrote.

import { percent, tokenLabel } from "../format.js";

/** @typedef {{kind: "text"|"figure"|"word", text: string}} Part */

/** A word of the model's, in quotes. */
export const word = (text) => ({ kind: "word", text: `“${text}”` });

/** What stands for a token of which only the text is known. */
export const wordOf = (text) => word(tokenLabel(text ?? "", "·"));

/** A share with its sign, as the instruments write it. */
export const share = (value) => `${percent(value)}\u00a0%`;

/** Text that is put into a sentence and is no figure. */
export const plain = (text) => ({ kind: "text", text });

/**
 * A sentence as parts. What is put into it is a figure, unless it is a part or several.
 * @returns {Part[]}
 */
export const say = (texts, ...values) =>
  texts.flatMap((text, i) => (i < values.length ? [plain(text), ...partsOf(values[i])] : [plain(text)]));

function partsOf(value) {
  if (Array.isArray(value)) return value;
  return [value?.kind ? value : { kind: "figure", text: String(value) }];
}

/** Sentences after each other; those that are null are left out. */
export const sentences = (...all) =>
  all
    .filter(Boolean)
    .flatMap((parts, i) => (i ? [{ kind: "text", text: " " }, ...parts] : parts));
