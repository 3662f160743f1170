// Text of the tokens of a prompt, in which parts of its request are found. A character may be split
// over several tokens, whose texts then have U+FFFD in its place: runs of characters that are not
// ASCII count as one. No DOM access in this module.

const RUN = "\uFFFD";

/** A text as it is searched for. @param {string} text */
export const searchable = (text) => text.replace(/[^\x00-\x7F]+/g, RUN);

/**
 * Return the searchable `text` of tokens, and the numbers of the first and the last token that have a
 * part of its character `at`.
 *
 * @param {ToPage.TokenText[]} tokens
 */
export function textOfTokens(tokens) {
  /** @type {string[]} */
  const chars = [];
  /** @type {number[]} */
  const first = [];
  /** @type {number[]} */
  const last = [];
  tokens.forEach((token, i) => {
    for (const char of searchable(token.text)) {
      if (char !== RUN || chars.at(-1) !== RUN) {
        chars.push(char);
        first.push(i);
      }
      last[chars.length - 1] = i;
    }
  });
  return {
    text: chars.join(""),
    /** @param {number} at */
    firstOf: (at) => first[at],
    /** @param {number} at */
    lastOf: (at) => last[at],
  };
}
