// Resuming after a disconnect, a reload or an engine restart: missed events are requested again.

import { send } from "../net/connection.js";
import { fillFromArchive } from "./archived-runs.js";
import { save } from "./persist.js";
import { changed, liveState, setLiveState } from "../state.js";
import { settleSettings } from "./live-updates.js";

/**
 * @typedef {{answer: Answer, segment: Segment, text: string | null, unfinished?: boolean}} Refill
 */

/**
 * Segments restored as text whose events are requested again, in order: {answer, segment, text}.
 *
 * @type {Refill[]}
 */
let refillQueue = [];
/** @type {Refill | null} */
let refilling = null;

/** @param {Refill[]} segments */
export function refill(segments) {
  refillQueue = segments;
  const unfinished = segments.find((each) => each.unfinished);
  if (unfinished) setLiveState({ active: unfinished.answer });
}

export function dropRefills() {
  refillQueue = [];
  refilling = null;
}

/** Disconnected: the segment being refilled is requested again first. */
export function pauseRefill() {
  if (refilling) refillQueue.unshift(refilling);
  refilling = null;
}

/** Resume after the engine became ready: refill segments, or go on with the active run. */
export function resumeRun() {
  if (refillQueue.length || refilling) {
    if (!refilling) refillNext();
    return;
  }
  const segment = liveState().active?.segment;
  if (!segment?.running) return;
  send({ type: "resume", id: segment.id, after: segment.seq });
  settleSettings();
}

function refillNext() {
  refilling = refillQueue.shift() ?? null;
  if (!refilling) return;
  const { segment } = refilling;
  segment.state = "sent";
  send({ type: "resume", id: segment.id, after: segment.seq });
}

/** Refill the next segment once this one has ended. @param {Segment} segment */
export function endRefill(segment) {
  if (refilling?.segment === segment) refillNext();
}

export const isRefilling = () => refilling !== null || refillQueue.length > 0;

/**
 * Handle an unknown generation: send it again if the server never answered it, else keep its tokens
 * if the browser has them, or its text.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 */
export async function onUnknownGeneration(answer, segment) {
  if (segment.running && segment.unanswered) {
    send(segment.request);
    return;
  }
  if (refilling?.segment === segment) {
    const { text } = refilling;
    const filled = await fillFromArchive(answer, segment);
    if (refilling?.segment !== segment) return;
    if (!filled) answer.lose(segment, text ?? "");
    if (liveState().active === answer) setLiveState({ active: null });
    refillNext();
  } else if (segment.running) {
    segment.state = "done";
    segment.reason = segment.left ? "cancelled" : "error";
    segment.message = segment.left ? "" : "the engine no longer has this generation";
    setLiveState({ active: null });
  }
  save();
  changed("turns", "tokens", "focus");
}
