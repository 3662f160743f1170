// One line over the grid: what acts now and from which token on, or what the next step is.

import { count } from "../format.js";
import { isNothing, same } from "../reach.js";
import { wireOf } from "../reachsetting.js";
import { lastTurn, shownAnswer, state } from "../state.js";

/** {text, tone}: tone "on" while something acts, "bad" for an error, else "". */
export function saysOf() {
  const { problem } = state;
  if (state.replay) return quiet("As it was at this token; a replay changes nothing.");
  if (problem?.param?.startsWith("reach"))
    return { text: sentence(problem.message), tone: "bad" };
  const set = wireOf(state.reach.setting);
  const segment = shownAnswer(lastTurn())?.segment;
  return state.active ? whileWriting(set, segment) : atRest(set, segment);
}

const TOO_LATE = "A computed token cannot be patched: write it again.";
const AGAIN = "Reset: the same seed gives the same text again.";

const quiet = (text) => ({ text, tone: "" });
const acting = (text) => ({ text, tone: "on" });
const sentence = (text) => text[0].toUpperCase() + text.slice(1);

const live = ({ patch: _, ...rest }) => rest;

function whileWriting(set, segment) {
  const { reach } = segment;
  const within = state.hello.limits.in_flight + 1;
  if (!same(live(set), live(reach))) return quiet(`Sent: acts within ${within} tokens.`);
  if (!same({ patch: set.patch }, { patch: reach.patch })) return quiet(TOO_LATE);
  if (isNothing(set)) return quiet(`Changes act at once, within ${within} tokens.`);
  return acting(sinceWhen(segment));
}

function atRest(set, segment) {
  const inside = segment?.reach ?? {};
  if (isNothing(set)) return quiet(isNothing(inside) ? "" : AGAIN);
  if (!same(set, inside)) return quiet("Acts on the next answer, from its prompt on.");
  return acting(sinceWhen(segment));
}

/** From which token on what is set acted. */
function sinceWhen({ reached, prompt, base }) {
  let at = reached.length - 1;
  while (at > 0 && same(reached[at - 1].reach, reached[at].reach)) at -= 1;
  const index = (reached[at]?.first ?? 0) - prompt.length + 1;
  return index <= 0 ? "Acts from the beginning on." : `Acts from token ${count(base + index + 1)} on.`;
}
