// @ts-nocheck
// Sentences of the tour: text with measured figures and the model's words.

import { percent, tokenLabel } from "../ui/format.js";

/** @typedef {{kind: "text"|"figure"|"word", text: string}} Part */

/** A word of the model, in quotes. */
export const word = (text) => ({ kind: "word", text: `“${text}”` });

/** Label of a token of which only the text is known. */
export const wordOf = (text) => word(tokenLabel(text ?? "", "·"));

/** A share with its sign, as in the instruments. */
export const share = (value) => `${percent(value)}\u00a0%`;

/** Text inserted into a sentence that is not a figure. */
export const plain = (text) => ({ kind: "text", text });

/**
 * Build a sentence as parts. Inserted values are figures unless they are parts already. A line
 * break in the template counts as a space.
 * @returns {Part[]}
 */
export const sentence = (texts, ...values) =>
  texts.flatMap((text, i) => [
    plain(text.replace(/\n\s*/g, " ")),
    ...(i < values.length ? partsOf(values[i]) : []),
  ]);

function partsOf(value) {
  if (Array.isArray(value)) return value;
  return [value?.kind ? value : { kind: "figure", text: String(value) }];
}

/** Join sentences; null ones are left out. */
export const sentences = (...all) =>
  all
    .filter(Boolean)
    .flatMap((parts, i) => (i ? [{ kind: "text", text: " " }, ...parts] : parts));
