// @ts-nocheck
// Runs of a comparison: the prompt sent with the settings of every column at once, so that the engine
// computes them as rows of the same steps; and taking one answer over into the conversation.
//
// What a column is asked is {text, mode, messages | prompt, turn, after, aside}. `turn`: the turn of the
// conversation that answers it, too, or null; `after`: the turn before it, or null; `aside`: it is in the
// place of another prompt of the conversation.

import { Answer } from "../../turns/answer.js";
import { partsOf } from "../../turns/message-parts.js";
import { beginSegment, newMessage, whyTooLong } from "../../chat/generate-message.js";
import { releaseControls } from "../../settings/bound-controls.js";
import { saveSettings } from "../../turns/persist.js";
import { messagesBefore } from "../../chat/session.js";
import { keepSoon } from "../../conversations/keeper.js";
import { change } from "../../interventions/intervention-store.js";
import { withPatchesUpTo } from "../../interventions/intervention-wire.js";
import { send } from "../../net/connection.js";
import { follow, unfollow } from "../../net/followed-runs.js";
import { drawSeed } from "../../settings/sampling-settings.js";
import { changed, lastTurn, ready, shownAnswer, state } from "../../state.js";
import { pin, showAnswer, view } from "../../view.js";
import { allColumns, isRunning, select, selectedNumber, settingOf, settingsOf } from "./columns.js";

/** The prompt that a comparison begins with: that of the last turn, without its files; or "". */
export function lastPrompt() {
  const turn = lastTurn();
  if (!turn || turn.summary) return "";
  return turn.mode === "chat" ? partsOf(state.turns.at(-2)).text : turn.given;
}

function promptOf(text) {
  const turn = lastTurn();
  if (turn && text === lastPrompt()) {
    const { mode, given } = turn;
    const chat = mode === "chat";
    const what = chat ? { messages: messagesBefore(state.turns.length - 1) } : { prompt: given };
    return { text, mode, turn, after: turn, aside: false, ...what };
  }
  const { mode } = state;
  return { text, mode, turn: null, after: turn, aside: false, ...requestOf(text, mode) };
}

function requestOf(text, mode, nTurns = state.turns.length) {
  if (mode !== "chat") return { prompt: text };
  return { messages: [...messagesBefore(nTurns), { role: "user", content: text }] };
}

/** What a column with a prompt of its own is asked: that in the place of the others' prompt. */
function ownPromptOf(text, { mode, turn, after }) {
  const nTurns = state.turns.length - (turn ? 2 : 0);
  return { text, mode, turn: null, after, aside: turn !== null, ...requestOf(text, mode, nTurns) };
}

/** Say how a prompt stands to the conversation. */
export function describePrompt(text) {
  if (text.trim() === "") return "";
  const { turn, after, mode } = promptOf(text);
  if (turn) return "the last prompt again";
  return after && mode === "chat" ? "after the conversation" : "";
}

/** Run the prompt in all columns. Returns why not, or "". */
export function runAll(text) {
  if (!ready()) return "The engine is not ready.";
  if (isRunning() || text.trim() === "") return "";
  const shared = promptOf(text);
  const asked = allColumns().map(({ prompt }) => (prompt ? ownPromptOf(prompt, shared) : shared));
  const messages = messagesOf(asked);
  const problem = messages.map(whyTooLong).find(Boolean);
  if (problem) return problem.message;
  allColumns().forEach((column, i) => {
    Object.assign(column, { asked: asked[i], answer: new Answer(), refused: "" });
    beginSegment(column.answer, messages[i]);
    follow(column.answer, followerOf(column));
  });
  for (const message of messages) send(message);
  pin(null);
  select(selectedNumber());
  changed("tokens");
  return "";
}

/** One message per column. Columns without a seed share one, so that only their settings differ. */
function messagesOf(asked) {
  const seed = drawSeed();
  return allColumns().map((column, i) => {
    const { messages, prompt, turn } = asked[i];
    const nTokens = turn?.answers[0].segments[0]?.prompt.length ?? 0;
    const settings = settingsOf(column);
    return newMessage(messages ? { messages } : { prompt }, {
      params: { ...settings, seed: settings.seed || seed },
      capture: state.capture,
      interventions: withPatchesUpTo(settingOf(column), nTokens),
    });
  });
}

const followerOf = (column) => ({
  name: () => column.name,
  onEvent: () => changed("look"),
  onRefused(_segment, { message }) {
    if (view.answer === column.answer) showAnswer(shownAnswer(lastTurn()));
    Object.assign(column, { answer: null, refused: message });
    select(selectedNumber());
  },
});

/** Why the answer of a column cannot become one of the conversation, or "". */
export function whyNotTakable({ answer, asked }) {
  if (!answer?.segment?.accepted) return "There is no answer yet.";
  if (state.active) return "A reply is being written in the conversation; stop it first.";
  if (asked.turn?.answers.includes(answer)) return "It is in the conversation.";
  if (asked.aside) return "It answers another prompt than the conversation.";
  if (lastTurn() !== (asked.turn ?? asked.after)) return "The conversation has gone on since.";
  return "";
}

/** Make the answer of a column one of the conversation, and its settings those of the page. */
export function takeOver(column) {
  if (whyNotTakable(column)) return;
  const { answer, asked } = column;
  const [{ seed: _seed, ...values }, setting] = [settingsOf(column), settingOf(column)];
  releaseControls();
  Object.assign(state.settings, values);
  change(setting);
  if (asked.turn) asked.turn.answers.push(answer);
  else asked.turn = pushTurn(column);
  asked.turn.shown = asked.turn.answers.length - 1;
  if (answer.running) {
    unfollow(answer.segment.id);
    state.active = answer;
  }
  saveSettings();
  keepSoon();
  changed("turns", "tokens", "settings");
}

function pushTurn({ answer, asked: { text, mode } }) {
  const chat = mode === "chat";
  if (chat) state.turns.push({ role: "user", text, mode });
  state.turns.push({ role: "model", mode, given: chat ? "" : text, answers: [answer], shown: 0 });
  return state.turns.at(-1);
}
