// Answers of a comparison side by side: which tokens are the same, and where two answers part. No
// DOM access.

/**
 * Return for each answer the number of the first one that has the same token at `index`; null where
 * it has none (yet).
 *
 * @param {(Answer | null)[]} answers
 * @param {number} index
 */
export function groupsAt(answers, index) {
  const ids = answers.map((answer) => answer?.tokens[index]?.id ?? null);
  return ids.map((id) => (id === null ? null : ids.indexOf(id)));
}

/**
 * Return the first difference of two answers: {index, sides}, or null if there is none yet. `sides`:
 * the token of each, null where the answer ended before it.
 *
 * @param {Answer | null} a
 * @param {Answer | null} b
 * @returns {Parting | null}
 */
export function firstDifference(a, b) {
  if (!a?.segment || !b?.segment) return null;
  const shorter = Math.min(a.tokens.length, b.tokens.length);
  let index = 0;
  while (index < shorter && a.tokens[index].id === b.tokens[index].id) index += 1;
  if (index === shorter) {
    const rest = a.tokens.length - b.tokens.length;
    if (!rest || (rest > 0 ? b : a).running) return null;
  }
  return { index, sides: [a.tokens[index] ?? null, b.tokens[index] ?? null] };
}

/** Number of tokens of the longest answer. @param {(Answer | null)[]} answers */
export const longestOf = (answers) =>
  Math.max(0, ...answers.map((answer) => answer?.tokens.length ?? 0));
