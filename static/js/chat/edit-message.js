// Editing a message of the person: the turns before it and the edited message become a conversation
// of their own, a branch, in which the answer is written. No DOM access in this module.

import { branchOf, showBranch } from "../conversations/library.js";
import { keepNow, keepSoon, headingOf } from "../conversations/keeper.js";
import { isRefilling } from "../net/resume.js";
import { hasEngine, state } from "../state.js";
import { fileMarks, partsOf, withFiles } from "./attachments.js";
import { isComposerEmpty, sendMessage } from "./composer.js";
import { isMakingRoom, makesRoom } from "./summarize.js";

/** Why no edited message can be sent now, or "". */
export function whyNotNow() {
  if (!hasEngine()) return "It can be sent once the model is ready.";
  if (state.replay) return "It can be sent once the replay is closed.";
  if (state.active || isRefilling()) return "It can be sent once the answer is written.";
  if (!state.hello.model.chat) return "This model has no chat template, so it takes no messages.";
  if (isMakingRoom() || (makesRoom() && !isComposerEmpty()))
    return (
      "It would wait in the message field until the oldest turns are summarised, but another " +
      "message is there. Send or delete that first."
    );
  return "";
}

/**
 * Send `text` in place of the message of `turn`, with its files, in a branch. Resolves to "", or to
 * why that was not possible; the page is as before then.
 */
export async function sendEdited(turn, text) {
  const { conversation, turns } = state;
  const n = turns.slice(0, turns.indexOf(turn)).filter(({ role }) => role === "user").length;
  const { files } = partsOf(turn);
  const edited = { role: "user", text: withFiles(text, files), files: fileMarks(files) };
  let branch;
  try {
    branch = await branchOf(conversation, n, headingOf([edited]));
  } catch (error) {
    if (error.name === "TypeError") throw error;
    return error.message;
  }
  if (state.conversation !== conversation) return "";
  const why = whyNotNow();
  if (why) return why;
  const goBack = showBranch(branch);
  if (!sendMessage({ text, files })) {
    const { message } = state.problem;
    goBack();
    return message;
  }
  if (state.active) state.active.segment.staysIfRefused = true;
  keepSoon();
  keepNow();
  return "";
}
