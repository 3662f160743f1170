// Editing a message of the person or an answer of the model: what was said before it and the edited
// text become a conversation of their own, a branch. No DOM access in this module.

import { branchOf, showBranch } from "../conversations/library.js";
import { keepNow, keepSoon, headingOf } from "../conversations/keeper.js";
import { isRefilling } from "../turns/resume.js";
import { hasEngine, shownAnswer, state } from "../state.js";
import { editedAnswer } from "../turns/answer.js";
import { partsOf } from "../turns/message-parts.js";
import { sendMessage, whyFieldTaken } from "./composer.js";
import { continueAnswer } from "./session.js";
import { placeOf } from "../turns/turn-place.js";

/**
 * Why nothing can become a branch now, or "". `what`: "It can be sent", …
 *
 * @param {string} what
 */
function whyNoBranch(what) {
  if (state.replay) return `${what} once the replay is closed.`;
  if (state.active || isRefilling()) return `${what} once the answer is written.`;
  return "";
}

/**
 * Return the conversation up to `turn` as a branch, {branch}, or why there can be none, {problem}. It
 * is named after `text`. `whyNot`: one of those below.
 *
 * @param {Turn} turn
 * @param {string} text
 * @param {() => string} whyNot
 * @returns {Promise<{branch: {turns: Turn[], conversation: Conversation}, problem: ""} |
 *   {branch: null, problem: string}>}
 */
async function branchBefore(turn, text, whyNot) {
  const { conversation, turns } = state;
  const title = headingOf([{ role: "user", mode: "chat", text }]);
  try {
    const branch = await branchOf(conversation, placeOf(turns, turn), title);
    if (state.conversation !== conversation)
      return { branch: null, problem: "Another conversation is on the page now." };
    const problem = whyNot();
    return problem ? { branch: null, problem } : { branch, problem: "" };
  } catch (error) {
    if (error instanceof TypeError) throw error;
    return { branch: null, problem: /** @type {Error} */ (error).message };
  }
}

// ---- a message of the person -------------------------------------------------------------------

/** Why no edited message can be sent now, or "". */
export function whyNotSent() {
  if (!hasEngine()) return "It can be sent once the model is ready.";
  const why = whyNoBranch("It can be sent");
  if (why) return why;
  if (!state.hello?.model.chat) return "This model has no chat template, so it takes no messages.";
  return whyFieldTaken();
}

/**
 * Send `text` in place of the message of `turn`, with its files, in a branch. Resolves to "", or to
 * why that was not possible; the page is as before then.
 *
 * @param {UserTurn} turn
 * @param {string} text
 */
export async function sendEdited(turn, text) {
  const { files } = partsOf(turn);
  const { branch, problem } = await branchBefore(turn, text || files[0].name, whyNotSent);
  if (!branch) return problem;
  const goBack = showBranch(branch, "chat");
  if (!sendMessage({ text, files })) {
    const { message = "" } = state.problem ?? {};
    goBack();
    return message;
  }
  if (state.active?.segment) state.active.segment.staysIfRefused = true;
  keepSoon();
  keepNow();
  return "";
}

// ---- an answer of the model --------------------------------------------------------------------

/** Why no edited answer can be saved now, or "". */
export const whyNotSaved = () =>
  state.hello ? whyNoBranch("It can be saved") : "It can be saved once the model is ready.";

/** Why the model cannot go on with an edited answer now, or "". */
export const whyNotContinued = () =>
  hasEngine() ? whyNoBranch("It can be continued") : "It can be continued once the model is ready.";

/**
 * Put `text` in place of the answer of `turn` in a branch. Resolves as `sendEdited` does.
 *
 * @param {ModelTurn} turn
 * @param {string} text
 */
export const saveEdited = (turn, text) => showEdited(turn, text, whyNotSaved);

/**
 * Do what `saveEdited` does, and have the model write on from the end of `text`.
 *
 * @param {ModelTurn} turn
 * @param {string} text
 */
export async function continueEdited(turn, text) {
  const problem = await showEdited(turn, text, whyNotContinued);
  if (!problem) continueAnswer();
  return problem;
}

/**
 * @param {ModelTurn} turn
 * @param {string} text
 * @param {() => string} whyNot
 */
async function showEdited(turn, text, whyNot) {
  const before = shownAnswer(turn);
  if (!before) return "There is no answer to edit.";
  const answer = editedAnswer(before, text);
  const { role, mode, given } = turn;
  const { branch, problem } = await branchBefore(turn, text, whyNot);
  if (!branch) return problem;
  branch.turns.push({ role, mode, given, answers: [answer], shown: 0 });
  showBranch(branch, mode);
  keepSoon();
  keepNow();
  return "";
}
