// The place of a turn in its conversation, which stays the same when summaries come and go. No DOM
// access in this module.
//
//   message   number of the person's message, counted from 0: of a message its own, of an answer
//             that of the message that it answers, of a completion that of the next message
//   answer    number of the answer, counted from 0 over answers and completions; absent for a message

import { indexOfMessage } from "./summary.js";

/** @param {Turn} turn */
const isAnswer = ({ role, summary }) => role === "model" && !summary;

/**
 * Return the place of a turn, {message, answer}, among `turns`. It is no summary.
 *
 * @param {Turn[]} turns
 * @param {Turn} turn
 */
export function placeOf(turns, turn) {
  const before = turns.slice(0, turns.indexOf(turn));
  const message = before.filter(({ role }) => role === "user").length;
  if (turn.role === "user") return { message };
  const answer = before.filter(isAnswer).length;
  return { message: turn.mode === "chat" ? message - 1 : message, answer };
}

/**
 * Return the index of the turn at a place, behind the last turn if there is none.
 *
 * @param {Turn[]} turns
 * @param {{message: number, answer?: number}} place
 */
export function indexOfPlace(turns, { message, answer }) {
  if (answer === undefined) return indexOfMessage(turns, message);
  const answers = turns.flatMap((turn, i) => (isAnswer(turn) ? [i] : []));
  return answers[answer] ?? turns.length;
}
