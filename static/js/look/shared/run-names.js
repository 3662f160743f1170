// What this page calls its runs, by the number that their engine gives them (`Accepted.run`).

import { allFollowed, namesOfEnded } from "../../net/followed-runs.js";
import { lastTurn, liveState, shownAnswer } from "../../state.js";

/**
 * Return run → name, of the runs of this page at an engine (`Segment.engine`). All others are other
 * clients'.
 *
 * @param {number} engine
 */
export function runNames(engine) {
  const names = namesOfEnded(engine);
  const { turns } = liveState();
  for (const turn of turns)
    turn.answers?.forEach((answer, i) => nameRuns(names, engine, answer, nameOf(turn, answer, i)));
  for (const { answer, follower } of allFollowed())
    nameRuns(names, engine, answer, follower.name());
  return names;
}

/** @param {Map<number, string>} names @param {number} engine @param {Answer} answer @param {string} name */
function nameRuns(names, engine, { segments }, name) {
  for (const { run, engine: its } of segments) if (run && its === engine) names.set(run, name);
}

/** @param {Turn} turn @param {Answer} answer @param {number} i */
function nameOf(turn, answer, i) {
  if (turn !== lastTurn()) return "earlier answer";
  if (answer === shownAnswer(turn)) return "this answer";
  return `version ${i + 1}`;
}
