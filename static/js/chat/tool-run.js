// Running the calls of the last answer, and handing their results to the model. A call runs when the
// person presses “Run tool”, or by itself if the page is set so; results are sent once all are there.

import { changed, lastTurn, on, ready, shownAnswer, state } from "../state.js";
import { runTool } from "../tools/tools.js";
import { callsOf, roundsOf } from "../turns/tool-calls.js";
import { sendResults } from "./session.js";

/** Results of calls by their ids, until they are sent; null: it runs. @type {Map<string, ReplayFile.ToolResult | null>} */
const results = new Map();

export function setUpToolRuns() {
  on("turns tokens connection settings", runByThemselves);
}

/** The result of a call that is not sent yet; null: it runs; undefined: there is none. @param {string} id */
export const resultOf = (id) => results.get(id);

/** Does the conversation wait for the results of this turn? @param {ModelTurn} turn */
export const isWaiting = (turn) =>
  turn === lastTurn() && !state.active && !state.replay && callsOf(turn).length > 0;

/** Was the limit of answers with calls reached? */
export const isAtLimit = () => roundsOf(state.turns) >= state.tools.rounds;

function runByThemselves() {
  const turn = lastTurn();
  if (!turn || !state.tools.auto || !ready() || !isWaiting(turn) || turn.tool_use || isAtLimit()) return;
  if (!shownAnswer(turn)?.segment?.here) return; // of a conversation that was opened again
  for (const call of callsOf(turn)) if (!results.has(call.id)) run(turn, call);
  sendAll(turn); // what came while the engine was not there
}

/** The results of all calls of a turn, or null if one lacks its own. @param {ModelTurn} turn */
function allResults(turn) {
  const found = callsOf(turn).map(({ id }) => results.get(id));
  const all = found.filter((each) => each != null);
  return all.length === found.length ? all : null;
}

/** Are all results of a turn there, and the conversation waits for them? @param {ModelTurn} turn */
export const maySend = (turn) => isWaiting(turn) && (!!turn.tool_use || !!allResults(turn));

/**
 * Run a call of the last turn, and send the results if it was the last one without.
 *
 * @param {ModelTurn} turn
 * @param {ToPage.CalledTool} call
 */
export async function run(turn, call) {
  results.set(call.id, null);
  changed("turns");
  results.set(call.id, { ...call, ...(await runTool(call)) });
  changed("turns");
  sendAll(turn);
}

/** Send the results of a turn if all are there and it still is the last one. @param {ModelTurn} turn */
export function sendAll(turn) {
  if (!isWaiting(turn)) return;
  if (turn.tool_use) return void sendResults(turn.tool_use);
  const all = allResults(turn);
  if (!all) return;
  const content = shownAnswer(turn)?.segment?.content ?? "";
  if (!sendResults({ content, results: all })) return;
  for (const { id } of all) results.delete(id);
}
