// What becomes of a text that is longer than the context: it is refused or ends ("disabled"); a chat
// is written without its oldest turns ("auto"), as the server decides (app/prompt/truncation.py), or
// with a summary in their place ("summarize", of this page alone, see chat/summarize.js);
// or its oldest tokens but the first leave the context while it goes on ("slide").

import { byId, inputOf } from "../ui/dom.js";
import { plural } from "../ui/format.js";
import { saveSettings } from "../turns/persist.js";
import { oldestTurns, summaryIn } from "../turns/summary.js";
import { on, setState, state } from "../state.js";

export function setUpTruncation() {
  byId("truncation").addEventListener("change", (event) => {
    setTruncation(/** @type {Truncation} */ (inputOf(event).value));
  });
  on("settings", draw);
}

/** @param {Truncation} value */
export function setTruncation(value) {
  setState({ truncation: value });
  saveSettings();
}

/**
 * The field of a request that has none: turns are dropped of `messages` only.
 *
 * @param {Partial<RunRequest>} request
 */
export const truncationField = ({ messages, truncation }) =>
  !truncation && (state.truncation === "slide" || (messages && state.truncation === "auto"))
    ? { truncation: state.truncation }
    : {};

function draw() {
  byId("truncation").value = state.truncation;
  byId("truncation").disabled = !!state.replay;
}

/**
 * Say how many turns an answer was written without: "without the 3 oldest turns"; or "".
 *
 * @param {Answer} answer
 */
export function describeDropped({ segments }) {
  const { request, dropped } = segments.find((segment) => segment.dropped.length) ?? {};
  if (!dropped) return "";
  const n = dropped.filter((i) => request?.messages?.[i]?.role === "user").length || 1;
  return `without ${oldestTurns(n)}`;
}

/**
 * Say that an answer was written with a summary of the oldest turns; or "".
 *
 * @param {Answer} answer
 */
export const describeSummarized = ({ segments: [first] }) =>
  first && summaryIn(first.originalRequest) ? "the oldest turns as their summary" : "";

/**
 * Say how many tokens have left the context: "the oldest 96 tokens left the context"; or "".
 *
 * @param {Answer} answer
 */
export function describeSlid({ tokens }) {
  const slid = tokens.at(-1)?.slid ?? 0;
  return slid ? `the oldest ${plural(slid, "token")} left the context` : "";
}
