// Status line over the grid: which interventions are active and since which token.

import { count } from "../../ui/format.js";
import { isEmpty, sameInterventions } from "../../interventions/interventions.js";
import { toWire } from "../../interventions/intervention-wire.js";
import { lastTurn, shownAnswer, state } from "../../state.js";

/** Return {text, tone}: tone "on" while interventions are active, "bad" for an error, else "". */
export function interventionStatus() {
  const { problem } = state;
  if (state.replay) return quiet("The interventions at this token. A replay cannot be changed.");
  if (problem?.param?.startsWith("reach"))
    return { text: sentence(problem.message), tone: "bad" };
  const set = toWire(state.interventions.setting);
  const segment = shownAnswer(lastTurn())?.segment;
  return state.active && segment ? whileWriting(set, segment) : atRest(set, segment);
}

const TOO_LATE = "The prompt is computed already; press Run again to patch it.";
const AGAIN = "Reset. Run again writes the original text.";

/** @param {string} text */
const quiet = (text) => ({ text, tone: "" });
/** @param {string} text */
const acting = (text) => ({ text, tone: "on" });
/** @param {string} text */
const sentence = (text) => text[0].toUpperCase() + text.slice(1);

/** @param {FromPage.Interventions} reach */
const withoutPatches = ({ patch: _, ...rest }) => rest;

/** @param {FromPage.Interventions} set @param {Segment} segment */
function whileWriting(set, segment) {
  const { interventions } = segment;
  const within = (state.hello?.limits.in_flight ?? 0) + 1;
  if (!sameInterventions(withoutPatches(set), withoutPatches(interventions)))
    return quiet(`Sent. Acts within the next ${within} tokens.`);
  if (!sameInterventions({ patch: set.patch }, { patch: interventions.patch }))
    return quiet(TOO_LATE);
  if (isEmpty(set)) return quiet(`A change acts within the next ${within} tokens.`);
  return acting(sinceWhen(segment));
}

/** @param {FromPage.Interventions} set @param {Segment | null | undefined} segment */
function atRest(set, segment) {
  const inside = segment?.interventions ?? {};
  if (isEmpty(set)) return quiet(isEmpty(inside) ? "" : AGAIN);
  if (!segment || !sameInterventions(set, inside)) return quiet("Acts on the next answer, including its prompt.");
  return acting(sinceWhen(segment));
}

/** Text for the token from which on the current interventions acted. @param {Segment} segment */
function sinceWhen({ interventionSpans, prompt, base }) {
  let at = interventionSpans.length - 1;
  /** @param {number} i */
  const isSame = (i) =>
    sameInterventions(interventionSpans[i - 1].reach, interventionSpans[i].reach);
  while (at > 0 && isSame(at)) at -= 1;
  const index = (interventionSpans[at]?.first ?? 0) - prompt.length + 1;
  return index <= 0 ? "Acts from the first token on." : `Acts from token ${count(base + index + 1)} on.`;
}
