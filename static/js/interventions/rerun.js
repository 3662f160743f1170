// Writing the newest answer again with the same seed and what is set inside the model now, so that
// only that can part the two texts.

import { force } from "./forcing.js";
import { regenerate, stop } from "./session.js";
import { lastTurn, on, ready, shownAnswer, state } from "./state.js";

/** The answer to write again once the run has stopped, or null. */
let wanted = null;

export function setUpRewriting() {
  on("turns tokens line", goOn);
}

/** Is there an answer that can be written again? */
export const canRewrite = () => ready() && !!shownAnswer(lastTurn())?.segment;

export function rewrite() {
  if (!canRewrite()) return;
  wanted = shownAnswer(lastTurn());
  if (state.active) stop();
  goOn();
}

function goOn() {
  if (!wanted || state.active || !ready()) return;
  const answer = wanted;
  wanted = null;
  if (answer !== shownAnswer(lastTurn())) return;
  const at = lastPatched(answer);
  if (at === null) regenerate({ seed: seedOf(answer) });
  else force(answer, at, [answer.tokens[at]]);
}

/** The seed of an answer, as a string of digits: seeds have 64 bits. */
export function seedOf(answer) {
  const [{ request, params }] = answer.segments;
  return String(request?.params.seed ?? params.seed);
}

/** The last written token that is to be patched: the text goes on from there; null: none is. */
function lastPatched(answer) {
  const patched = state.reach.setting.patch.filter(({ muted, at }) => !muted && answer.tokens[at]);
  return patched.length ? Math.max(...patched.map(({ at }) => at)) : null;
}
