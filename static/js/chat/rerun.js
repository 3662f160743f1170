// Rerun: generates the newest answer again with the same seed and the current interventions, so
// that only those can change the text.

import { replaceToken } from "./replace-token-run.js";
import { regenerate } from "./session.js";
import { stop } from "../turns/stop.js";
import { lastTurn, on, ready, shownAnswer, state } from "../state.js";

/** The answer to rerun once the current run has stopped, or null. @type {Answer | null} */
let wanted = null;

export function setUpRerun() {
  on("turns tokens connection", goOn);
}

/** Is there an answer that can be rerun? */
export const canRerun = () => ready() && !!shownAnswer(lastTurn())?.segment;

export function rerun() {
  if (!canRerun()) return;
  wanted = shownAnswer(lastTurn());
  if (state.active) stop();
  goOn();
}

/** @param {Set<string>} [topics] */
function goOn(topics) {
  if (!wanted || !ready()) return;
  const answer = wanted;
  if (answer !== shownAnswer(lastTurn())) wanted = null;
  else if (!state.active) begin(answer);
  else if (topics?.has("connection")) stop(); // the first stop may be lost with the connection
}

/** @param {Answer} answer */
function begin(answer) {
  wanted = null;
  const at = lastPatched(answer);
  if (at === null) regenerate({ seed: seedOf(answer) });
  else replaceToken(answer, at, [answer.tokens[at]]);
}

/** Seed of an answer as a string of digits: seeds have 64 bits. @param {Answer} answer */
export function seedOf(answer) {
  const [{ request, params }] = answer.segments;
  return String(request?.params.seed ?? params?.seed);
}

/**
 * Number of the last generated token that is patched: the rerun branches there; null: none.
 *
 * @param {Answer} answer
 */
function lastPatched(answer) {
  const { patch } = state.interventions.setting;
  const acting = patch.filter(({ muted }) => !muted).map(({ at }) => at ?? -1);
  const patched = acting.filter((at) => answer.tokens[at]);
  return patched.length ? Math.max(...patched) : null;
}
