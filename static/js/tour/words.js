// Sentences of the tour: text with measured figures and the model's words.

import { percent, tokenLabel } from "../ui/format.js";

/** What is inserted into a sentence. @typedef {string | number | SentencePart | SentencePart[]} SentenceValue */

/** A word of the model, in quotes. @param {string} text @returns {SentencePart} */
export const word = (text) => ({ kind: "word", text: `“${text}”` });

/** Label of a token of which only the text is known. @param {string | undefined} text */
export const wordOf = (text) => word(tokenLabel(text ?? "", "·"));

/** A share with its sign, as in the instruments. @param {number} value */
export const share = (value) => `${percent(value)}\u00a0%`;

/** Text inserted into a sentence that is not a figure. @param {string} text @returns {SentencePart} */
export const plain = (text) => ({ kind: "text", text });

/**
 * Build a sentence as parts. Inserted values are figures unless they are parts already. A line
 * break in the template counts as a space.
 *
 * @param {TemplateStringsArray} texts
 * @param {SentenceValue[]} values
 * @returns {SentencePart[]}
 */
export const sentence = (texts, ...values) =>
  texts.flatMap((text, i) => [
    plain(text.replace(/\n\s*/g, " ")),
    ...(i < values.length ? partsOf(values[i]) : []),
  ]);

/** @param {SentenceValue} value @returns {SentencePart[]} */
function partsOf(value) {
  if (Array.isArray(value)) return value;
  return [typeof value === "object" ? value : { kind: "figure", text: String(value) }];
}

/** Join sentences; null ones are left out. @param {(SentencePart[] | null)[]} all */
export const sentences = (...all) =>
  all.filter((parts) => parts !== null).flatMap((parts, i) => (i ? [plain(" "), ...parts] : parts));
