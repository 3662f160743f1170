// Calls of tools in the conversation. No DOM access in this module.
//
// An answer whose text has calls knows them from the end of its run. Once all have results, its turn
// has a `tool_use`, {content, results}: the text outside of the calls, and the calls with their
// results. Then the model goes on in a turn of its own.

import { shownAnswer } from "../state.js";

/**
 * The calls in the shown answer of a turn: [] while it is written, and for text without any.
 *
 * @param {ModelTurn} turn
 * @returns {ToPage.CalledTool[]}
 */
export function callsOf(turn) {
  if (turn.tool_use) return turn.tool_use.results;
  const segment = shownAnswer(turn)?.segment;
  return segment?.state === "done" && segment.reason !== "cancelled" ? segment.toolCalls : [];
}

/**
 * How many answers with calls stand before the end of the conversation, since the person's message.
 *
 * @param {Turn[]} turns
 */
export function roundsOf(turns) {
  const asked = turns.findLastIndex(({ role }) => role === "user");
  return turns.slice(asked + 1).filter((turn) => turn.role === "model" && turn.tool_use).length;
}

/**
 * Return the messages of an answer: with results of calls also those.
 *
 * @param {ModelTurn} turn
 * @returns {FromPage.Message[]}
 */
export function answerMessages(turn) {
  const { tool_use: use } = turn;
  if (!use) return [{ role: "assistant", content: shownAnswer(turn)?.text ?? "" }];
  const calls = use.results.map(({ id, name, arguments: given }) => ({
    id,
    function: { name, arguments: given },
  }));
  return [
    { role: "assistant", content: use.content, tool_calls: calls },
    ...use.results.map(({ id, content }) => ({
      role: /** @type {const} */ ("tool"),
      content,
      tool_call_id: id,
    })),
  ];
}
