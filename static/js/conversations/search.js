// Search in the entries of conversations, without regard to case and accents. No DOM access.

/** Length of the text around a hit, before and after it. */
const BEFORE = 24;
const AFTER = 80;

const ASCII = /^[\x00-\x7f]*$/;
/**
 * Some small letters share a capital, as the two sigmas do, or have several, as ß does.
 *
 * @param {string} c
 */
const foldCharacter = (c) => c.normalize("NFKD").replace(/\p{M}/gu, "").toUpperCase().toLowerCase();

/** Return a text without case and accents. @param {string} text */
export const fold = (text) =>
  ASCII.test(text) ? text.toLowerCase() : Array.from(text, foldCharacter).join("");

/** @param {string} query */
export const wordsOf = (query) => fold(query).split(/\s+/).filter((word) => word !== "");

/**
 * Folded texts of entries, so that every letter typed does not fold them again.
 *
 * @type {WeakMap<Entry, string>}
 */
const folded = new WeakMap();

/** @param {Entry} entry */
function foldedEntry(entry) {
  const { title, heading, system, text } = entry;
  const known = folded.get(entry) ?? fold([title || heading, system, text].join("\n"));
  folded.set(entry, known);
  return known;
}

/**
 * Does an entry have all of these words, in its name, system prompt or text?
 *
 * @param {Entry} entry
 * @param {string[]} words
 */
export const hasWords = (entry, words) => words.every((word) => foldedEntry(entry).includes(word));

/**
 * Return the text around the first of `words` in `text`: {before, hit, after}, or null. Whole words
 * at both ends, on one line.
 *
 * @param {string} text
 * @param {string[]} words
 */
export function excerpt(text, words) {
  const whole = fold(text);
  const places = words.map((word) => ({ at: whole.indexOf(word), word })).filter(({ at }) => at >= 0);
  if (!places.length) return null;
  const { at, word } = places.reduce((a, b) => (b.at < a.at ? b : a));
  const [start, end] = [unfoldedIndex(text, at), unfoldedIndex(text, at + word.length)];
  /** @param {string} part */
  const line = (part) => part.replace(/\s+/g, " ");
  const before = text.slice(Math.max(0, start - BEFORE), start);
  const after = text.slice(end, end + AFTER);
  const cut = start > BEFORE ? `…${before.replace(/^\S*\s/, "")}` : before;
  return { before: line(cut), hit: line(text.slice(start, end)), after: line(after) };
}

/**
 * Index in a text of the character at `index` of its folded form.
 *
 * @param {string} text
 * @param {number} index
 */
function unfoldedIndex(text, index) {
  if (ASCII.test(text)) return index;
  let [at, length] = [0, 0];
  for (const c of text) {
    if (length >= index) return at;
    length += foldCharacter(c).length;
    at += c.length;
  }
  return at;
}
