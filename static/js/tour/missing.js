// Why a number of the walk cannot be had.

import { plain, say } from "./words.js";

/** "How long it is was not measured: …" of a token without statistics. */
export function notMeasured(what, { segment }) {
  const why = segment.capture
    ? "this page was behind, so the layers’ numbers were dropped"
    : "capture was off";
  return say`${plain(what)} was not measured: ${plain(why)}.`;
}

/** A question was refused; `error`: {message}. */
export const notAnswered = ({ message }) => {
  const text = String(message);
  return say`This could not be measured: ${plain(text[0].toLowerCase() + text.slice(1).replace(/\.$/, ""))}.`;
};
