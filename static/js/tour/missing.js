// Texts for figures of the tour that are missing.

import { plain, sentence } from "./words.js";

/**
 * "Its norm was not measured: …", for a token without statistics.
 *
 * @param {string} what
 * @param {Token} token
 */
export function notMeasured(what, { segment }) {
  const why = segment.capture
    ? "the page was too slow to receive it"
    : "capture was off";
  return sentence`${plain(what)} was not measured: ${plain(why)}.`;
}

/** Text for an inspection that failed; `error`: {message}. @param {{message: string}} error */
export const notAnswered = ({ message }) => {
  const text = String(message).replace(/\.$/, "");
  return sentence`This could not be measured: ${plain(text[0].toLowerCase() + text.slice(1))}.`;
};
