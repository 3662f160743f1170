// Where a summary is among the tokens of a prompt, found by its text. No DOM access in this module.

import { searchable, textOfTokens } from "./prompt-text.js";
import { ASKED, summaryIn } from "./summary.js";

/** Most characters that a template puts between two messages. */
const MAX_BETWEEN = 200;
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
 * @param {string} summary
 */
function findSpan(prompt, summary) {
  if (!summary) return null;
  const { text, firstOf, lastOf } = textOfTokens(prompt);
  const wanted = searchable(summary);
  const start = text.indexOf(ASKED);
  const after = start + ASKED.length;
  const at = text.slice(after, after + MAX_BETWEEN + wanted.length).indexOf(wanted);
  if (start < 0 || at < 0) return null;
  return { first: firstOf(start), end: lastOf(after + at + wanted.length - 1) + 1 };
}
