// After a lost line, a reload or a restart: go on where it broke, and fill in what a reload forgot.

import { send } from "./line.js";
import { save } from "./persist.js";
import { changed, live } from "./state.js";
import { settleSettings } from "./updates.js";

/** Segments known by their text, to be filled by their messages in this order: {answer, segment, text}. */
let toRefill = [];
let refilling = null;

export function refill(segments) {
  toRefill = segments;
  const unfinished = segments.find((each) => each.unfinished);
  if (unfinished) live().active = unfinished.answer;
}

export function dropRefills() {
  toRefill = [];
  refilling = null;
}

/** The line broke: what was being filled comes first again. */
export function pauseRefill() {
  if (refilling) toRefill.unshift(refilling);
  refilling = null;
}

/** The engine is ready on this line. */
export function pickUp() {
  if (toRefill.length || refilling) {
    if (!refilling) refillNext();
    return;
  }
  const segment = live().active?.segment;
  if (!segment?.running) return;
  send({ type: "resume", id: segment.id, after: segment.seq });
  settleSettings();
}

function refillNext() {
  refilling = toRefill.shift() ?? null;
  if (!refilling) return;
  const { segment } = refilling;
  segment.state = "sent";
  send({ type: "resume", id: segment.id, after: segment.seq });
}

/** A segment ended. */
export function endRefill(segment) {
  if (refilling?.segment === segment) refillNext();
}

/** The server does not know a generation: never accepted (ask again), or gone (keep the text). */
export function onForgotten(answer, segment) {
  if (refilling?.segment === segment) {
    answer.lose(segment, refilling.text);
    if (live().active === answer) live().active = null;
    refillNext();
  } else if (!segment.accepted && segment.running) {
    send(segment.request);
    return;
  } else if (segment.running) {
    segment.state = "done";
    segment.reason = "error";
    segment.message = "the server no longer has this generation; its text is kept";
    live().active = null;
  }
  save();
  changed("turns", "tokens", "focus");
}
