// Note beside the answer, visible on every view, that interventions are active.

import { byId, one, setText } from "../ui/dom.js";
import {
  describeInterventions,
  interventionCountText,
  isEmpty,
  sameInterventions,
} from "../interventions/interventions.js";
import { toWire } from "../interventions/intervention-wire.js";
import { openByName } from "../look/frame.js";
import { lastTurn, on, shownAnswer, state } from "../state.js";

const note = byId("reach-note");

export function setUpInterventionNote() {
  note.addEventListener("click", () => openByName("reach"));
  on("interventions turns tokens hello", draw);
}

function draw() {
  const set = toWire(state.interventions.setting);
  const inside = shownAnswer(lastTurn())?.segment?.interventions ?? {};
  const now = state.active ? inside : set;
  const text = noteOf(set, inside);
  note.hidden = !text;
  setText(byId("reach-note-text"), text);
  note.title = `${when(set, inside)}: ${describeInterventions(isEmpty(now) ? inside : now)}`;
  const acts = !isEmpty(inside) && (!!state.active || sameInterventions(set, inside));
  note.toggleAttribute("data-acts", acts);
  const tab = one(document, "#look-tab-reach"); // look/frame.js makes the tabs
  if (isEmpty(now)) delete tab.dataset.n;
  else tab.dataset.n = interventionCountText(now).replace(/\D+/g, "");
}

/**
 * Text of the note, or "".
 *
 * @param {FromPage.Interventions} set
 * @param {FromPage.Interventions} inside
 */
function noteOf(set, inside) {
  if (state.active) return isEmpty(inside) ? "" : interventionCountText(inside);
  if (!isEmpty(set)) return interventionCountText(set);
  return isEmpty(inside) ? "" : `Had ${interventionCountText(inside)}`;
}

/** @param {FromPage.Interventions} set @param {FromPage.Interventions} inside */
function when(set, inside) {
  if (isEmpty(set) && !state.active) return "Active at the end of this answer";
  const active = state.active || sameInterventions(set, inside);
  return active ? "Active now" : "For the next answer";
}
