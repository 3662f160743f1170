// Where a summary is among the tokens of a prompt, found by its text: a character may be split over
// several tokens, whose texts then have U+FFFD in its place. No DOM access in this module.

import { ASKED, summaryIn } from "./summary.js";

/** Most characters that a template puts between two messages. */
const MAX_BETWEEN = 200;
const SPLIT = "\ufffd";
const spans = new WeakMap();

/**
 * Return which tokens of a run's prompt are the summary and the request for it: {first, end}; null:
 * none, or not found.
 *
 * @param {Segment} segment
 */
export function summarySpan({ prompt, originalRequest }) {
  if (!spans.has(prompt)) spans.set(prompt, findSpan(prompt, summaryIn(originalRequest)));
  return spans.get(prompt);
}

/**
 * @param {ToPage.TokenText[]} prompt
 * @param {string} text
 */
function findSpan(prompt, text) {
  if (!text) return null;
  const whole = prompt.map((token) => token.text).join("");
  const start = whole.indexOf(ASKED);
  const after = start + ASKED.length;
  for (let at = after; start >= 0 && at < after + MAX_BETWEEN; at += 1) {
    const end = endOfText(whole, at, text);
    if (end > 0) return { first: tokenAt(prompt, start), end: tokenAt(prompt, end - 1) + 1 };
  }
  return null;
}

/**
 * Return where `text` ends in `whole`, in which characters may be split, if it begins at `at`; or -1.
 *
 * @param {string} whole
 * @param {number} at
 * @param {string} text
 */
function endOfText(whole, at, text) {
  let [i, j] = [at, 0];
  while (j < text.length) {
    if (whole[i] === SPLIT) {
      while (whole[i] === SPLIT) i += 1;
      const next = text.indexOf(whole[i], j);
      if (next < 0) return i;
      j = next;
    } else if (whole[i] === text[j]) [i, j] = [i + 1, j + 1];
    else return -1;
  }
  return i;
}

/**
 * Number of the token that has character number `at` of the whole text.
 *
 * @param {ToPage.TokenText[]} prompt
 * @param {number} at
 */
function tokenAt(prompt, at) {
  let end = 0;
  return prompt.findIndex(({ text }) => (end += text.length) > at);
}
