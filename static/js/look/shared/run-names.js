// What this page calls its runs, by the number that the engine gives them (`Accepted.run`).

import { allFollowed, namesOfEnded } from "../../net/followed-runs.js";
import { lastTurn, liveState, shownAnswer } from "../../state.js";

/** Return run → name, of the runs of this page. All others are other clients'. */
export function runNames() {
  const names = namesOfEnded();
  const { turns } = liveState();
  for (const turn of turns)
    turn.answers?.forEach((answer, i) => nameRuns(names, answer, nameOf(turn, answer, i)));
  for (const { answer, follower } of allFollowed()) nameRuns(names, answer, follower.name());
  return names;
}

function nameRuns(names, { segments }, name) {
  for (const { run } of segments) if (run) names.set(run, name);
}

function nameOf(turn, answer, i) {
  if (turn !== lastTurn()) return "earlier answer";
  if (answer === shownAnswer(turn)) return "this answer";
  return `version ${i + 1}`;
}
