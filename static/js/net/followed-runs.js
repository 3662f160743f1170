// Runs whose answers are not in the page's conversation: those of a comparison, and of conversations
// that were left while they were written.

import { send } from "./connection.js";

/**
 * Who hears of a run.
 *
 *   name       returns what the page calls it
 *   onEvent    called after each event was applied to the answer, and when the run is lost
 *   onRefused  called with the server's error {code, message, param} if it does not start
 *
 * @typedef {{name: () => string, onEvent: (segment: Segment, event: RunEvent | null) => void,
 *   onRefused: (segment: Segment, error: Problem) => void}} Follower
 */

/**
 * id of a run → {answer, segment, follower}.
 *
 * @type {Map<string, {answer: Answer, segment: Segment, follower: Follower}>}
 */
const followed = new Map();
/**
 * {run, engine, name} of those that are not followed any more: numbers (`Accepted`) and names.
 *
 * @type {Array<{run: number, engine: number, name: string}>}
 */
const ended = [];
const MAX_ENDED = 64;

/**
 * Have the events of an answer's newest run applied to it.
 *
 * @param {Answer} answer
 * @param {Follower} follower
 */
export function follow(answer, follower) {
  const { segment } = answer;
  if (!segment) throw new Error("an answer that is followed needs a run");
  followed.set(segment.id, { answer, segment, follower });
}

/** All runs that are followed: {answer, segment, follower}. */
export const allFollowed = () => [...followed.values()];

/** Stop listening to a run, which may go on. @param {string} id */
export function unfollow(id) {
  const one = followed.get(id);
  if (!one) return;
  const { segment, follower } = one;
  followed.delete(id);
  const { run, engine } = segment;
  if (run) ended.push({ run, engine, name: follower.name() });
  if (ended.length > MAX_ENDED) ended.shift();
}

/**
 * Return run → name of the runs at an engine that were followed until lately.
 *
 * @param {number} engine
 */
export const namesOfEnded = (engine) =>
  new Map(ended.filter((one) => one.engine === engine).map(({ run, name }) => [run, name]));

/** Return {answer, segment, follower} of a run, or null. @param {string} id */
export const followedRun = (id) => followed.get(id) ?? null;

/** Ask for the events of all runs that were missed while there was no connection. */
export function resumeFollowed() {
  for (const { segment } of followed.values())
    send({ type: "resume", id: segment.id, after: segment.seq });
}

/**
 * Handle an error about a run that is followed; false if it is about an update of a run that goes on.
 *
 * @param {{segment: Segment, follower: Follower}} one
 * @param {ToPage.Error} error
 */
export function onFollowedError({ segment, follower }, error) {
  const isUnknown = error.code === "unknown_generation";
  if (segment.accepted && !isUnknown) return false;
  if (isUnknown && segment.unanswered) return send(segment.request);
  if (onTakenAlready(segment, error)) return true;
  unfollow(segment.id);
  segment.state = "done";
  segment.reason = "error";
  segment.message = isUnknown ? "the engine no longer has this generation" : error.message;
  if (isUnknown) follower.onEvent(segment, null);
  else follower.onRefused(segment, error);
  return true;
}

/**
 * Handle the refusal of a request that the server has taken already, and did not know yet when its
 * events were asked for; false if `error` is another.
 *
 * @param {Segment} segment
 * @param {ToPage.Error} error
 */
export function onTakenAlready(segment, { param }) {
  if (param !== "id" || !segment.unanswered) return false;
  return send({ type: "resume", id: segment.id, after: 0 });
}
