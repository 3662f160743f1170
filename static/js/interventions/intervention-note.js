// Says beside the answer, on every view of the page, that something is changed inside the model.

import { byId, setText } from "./dom.js";
import { changesInside, describe, isNothing, same } from "./reach.js";
import { wireOf } from "./reachsetting.js";
import { lastTurn, on, shownAnswer, state } from "./state.js";

const note = byId("reach-note");

export function setUpReachNote() {
  note.addEventListener("click", () => {
    location.hash = "look=reach";
  });
  on("reach turns tokens hello", draw);
}

function draw() {
  const set = wireOf(state.reach.setting);
  const inside = shownAnswer(lastTurn())?.segment?.reach ?? {};
  const now = state.active ? inside : set;
  const told = noteOf(set, inside);
  note.hidden = !told;
  setText(byId("reach-note-text"), told);
  note.title = `${when(set, inside)}: ${describe(isNothing(now) ? inside : now)}`;
  note.toggleAttribute("data-acts", !isNothing(inside) && (!!state.active || same(set, inside)));
  const tab = byId("look-tab-reach");
  if (isNothing(now)) delete tab.dataset.n;
  else tab.dataset.n = changesInside(now).replace(/\D+/g, "");
}

/** What is to be kept in mind, or "". */
function noteOf(set, inside) {
  if (state.active) return isNothing(inside) ? "" : changesInside(inside);
  if (!isNothing(set)) return changesInside(set);
  return isNothing(inside) ? "" : `Had ${changesInside(inside)}`;
}

function when(set, inside) {
  if (isNothing(set) && !state.active) return "This answer ended with";
  return state.active || same(set, inside) ? "Changed inside the model" : "Acts on the next answer";
}
