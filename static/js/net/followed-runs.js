// Runs whose answers are not in the page's conversation: those of a comparison, and of conversations
// that were left while they were written.

import { send } from "./connection.js";

/**
 * Who hears of a run.
 *
 *   onEvent    called after each event was applied to the answer, and when the run is lost
 *   onRefused  called with the server's error {code, message, param} if it does not start
 *
 * @typedef {{onEvent: (segment: object, event: object | null) => void,
 *   onRefused: (segment: object, error: object) => void}} Follower
 */

/** id of a run → {answer, segment, follower} */
const followed = new Map();

/** Have the events of an answer's newest run applied to it. @param {Follower} follower */
export function follow(answer, follower) {
  const { segment } = answer;
  followed.set(segment.id, { answer, segment, follower });
}

/** Stop listening to a run, which goes on. */
export const unfollow = (id) => followed.delete(id);

/** Return {answer, segment, follower} of a run, or null. */
export const followedRun = (id) => followed.get(id) ?? null;

/** Ask for the events of all runs that were missed while there was no connection. */
export function resumeFollowed() {
  for (const { segment } of followed.values())
    send({ type: "resume", id: segment.id, after: segment.seq });
}

/** Handle an error about a run that is followed; false if it is about an update of a run that goes on. */
export function onFollowedError({ segment, follower }, error) {
  const isUnknown = error.code === "unknown_generation";
  if (segment.accepted && !isUnknown) return false;
  if (isUnknown && !segment.accepted) return send(segment.request);
  unfollow(segment.id);
  segment.state = "done";
  segment.reason = "error";
  segment.message = isUnknown ? "the engine no longer has this generation" : error.message;
  if (isUnknown) follower.onEvent(segment, null);
  else follower.onRefused(segment, error);
  return true;
}
