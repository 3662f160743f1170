// After a lost line, a reload or a restart: go on where it broke, and fill in what a reload forgot.

import { send } from "./line.js";
import { save } from "./persist.js";
import { changed, state } from "./state.js";
import { settleSettings } from "./updates.js";

/** Segments known by their text, to be filled by their messages in this order: {answer, segment, text}. */
let toReplay = [];
let replaying = null;

export function replay(segments) {
  toReplay = segments;
  const last = segments.at(-1);
  if (last?.unfinished) state.active = last.answer;
}

export function dropReplays() {
  toReplay = [];
  replaying = null;
}

/** The line broke: what was being filled comes first again. */
export function pauseReplay() {
  if (replaying) toReplay.unshift(replaying);
  replaying = null;
}

/** The engine is ready on this line. */
export function pickUp() {
  if (toReplay.length || replaying) {
    if (!replaying) replayNext();
    return;
  }
  const segment = state.active?.segment;
  if (!segment?.running) return;
  send({ type: "resume", id: segment.id, after: segment.seq });
  settleSettings();
}

function replayNext() {
  replaying = toReplay.shift() ?? null;
  if (!replaying) return;
  const { segment } = replaying;
  segment.state = "sent";
  send({ type: "resume", id: segment.id, after: segment.seq });
}

/** A segment ended. */
export function endReplay(segment) {
  if (replaying?.segment === segment) replayNext();
}

/** The server does not know a generation: never accepted (ask again), or gone (keep the text). */
export function onForgotten(answer, segment) {
  if (replaying?.segment === segment) {
    answer.lose(segment, replaying.text);
    if (state.active === answer) state.active = null;
    replayNext();
  } else if (!segment.accepted && segment.running) {
    send(segment.request);
    return;
  } else if (segment.running) {
    segment.state = "done";
    segment.reason = "error";
    segment.message = "the server no longer has this generation; its text is kept";
    state.active = null;
  }
  save();
  changed("turns", "tokens", "focus");
}
