// How Python counts and trims text, for answers that equal the server's.

const SPACE = "\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const BETWEEN = new RegExp(`[${SPACE}]+`);
const IS_SPACE = new RegExp(`[${SPACE}]`);

/**
 * Return `text` without white space, or the characters in `chars`, at its start and end.
 *
 * @param {string} text
 * @param {boolean} [atStart]
 * @param {boolean} [atEnd]
 * @param {string | null} [chars]
 */
export function strip(text, atStart = true, atEnd = true, chars = null) {
  /** @param {string} char */
  const goes = (char) => (chars === null ? IS_SPACE.test(char) : chars.includes(char));
  const all = Array.from(text);
  let first = 0;
  let end = all.length;
  while (atStart && first < end && goes(all[first])) first += 1;
  while (atEnd && end > first && goes(all[end - 1])) end -= 1;
  return all.slice(first, end).join("");
}

/** Number of words: what white space separates. @param {string} text */
export const countWords = (text) => text.split(BETWEEN).filter(Boolean).length;

/** Number of characters: code points. @param {string} text */
export const countChars = (text) => Array.from(text).length;

/** A number as `f"{value:g}"` writes it: six digits. @param {number} value */
export function general(value) {
  const [digits, exponent] = value.toExponential(5).split("e");
  const power = Number(exponent);
  if (power >= -4 && power < 6) return String(Number(value.toPrecision(6)));
  const sign = power < 0 ? "-" : "+";
  return `${Number(digits)}e${sign}${String(Math.abs(power)).padStart(2, "0")}`;
}

/** A number as `repr` writes a float. @param {number} value */
export function decimal(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e16) return value.toFixed(1);
  const [digits, exponent] = value.toExponential().split("e");
  const power = Number(exponent);
  if (!(Math.abs(value) > 0) || (power >= -4 && power < 16)) return String(value);
  return `${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

/** A string as `repr` writes it, for the characters that occur in names. @param {string} text */
export function quoted(text) {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t");
  return mark + escaped.replaceAll(mark, `\\${mark}`) + mark;
}
