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
import {
  appendTurns,
  changed,
  lastTurn,
  ready,
  setSettings,
  setState,
  shownAnswer,
  state,
} from "../../state.js";
import { pin, showAnswer, view } from "../../view.js";
import { allColumns, isRunning, select, selectedNumber, settingOf, settingsOf } from "./columns.js";

/** The prompt that a comparison begins with: that of the last turn, without its files; or "". */
export function lastPrompt() {
  const turn = lastTurn();
  if (!turn || turn.summary) return "";
  const asked = state.turns.at(-2);
  return turn.mode === "chat" && asked?.role === "user" ? partsOf(asked).text : turn.given;
}

/** @param {string} text @returns {AskedPrompt} */
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

/** @param {string} text @param {Mode} mode @param {number} [nTurns] @returns {Asked} */
function requestOf(text, mode, nTurns = state.turns.length) {
  if (mode !== "chat") return { prompt: text };
  return { messages: [...messagesBefore(nTurns), { role: "user", content: text }] };
}

/**
 * What a column with a prompt of its own is asked: that in the place of the others' prompt.
 *
 * @param {string} text
 * @param {AskedPrompt} shared
 * @returns {AskedPrompt}
 */
function ownPromptOf(text, { mode, turn, after }) {
  const nTurns = state.turns.length - (turn ? 2 : 0);
  return { text, mode, turn: null, after, aside: turn !== null, ...requestOf(text, mode, nTurns) };
}

/** Say how a prompt stands to the conversation. @param {string} text */
export function describePrompt(text) {
  if (text.trim() === "") return "";
  const { turn, after, mode } = promptOf(text);
  if (turn) return "the last prompt again";
  return after && mode === "chat" ? "after the conversation" : "";
}

/** Run the prompt in all columns. Returns why not, or "". @param {string} text */
export function runAll(text) {
  if (!ready()) return "The engine is not ready.";
  if (isRunning() || text.trim() === "") return "";
  const shared = promptOf(text);
  const asked = allColumns().map(({ prompt }) => (prompt ? ownPromptOf(prompt, shared) : shared));
  const messages = messagesOf(asked);
  const problem = messages.map(whyTooLong).find(Boolean);
  if (problem) return problem.message;
  allColumns().forEach((column, i) => {
    const answer = new Answer();
    Object.assign(column, { asked: asked[i], answer, refused: "" });
    beginSegment(answer, messages[i]);
    follow(answer, followerOf(column));
  });
  for (const message of messages) send(message);
  pin(null);
  select(selectedNumber());
  changed("tokens");
  return "";
}

/**
 * One message per column. Columns without a seed share one, so that only their settings differ.
 *
 * @param {AskedPrompt[]} asked
 */
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

/** @param {CompareColumn} column @returns {Parameters<typeof follow>[1]} */
const followerOf = (column) => ({
  name: () => column.name,
  onEvent: () => changed("look"),
  onRefused(_segment, { message }) {
    if (view.answer === column.answer) showAnswer(shownAnswer(lastTurn()));
    Object.assign(column, { answer: null, refused: message });
    select(selectedNumber());
  },
});

/** Why the answer of a column cannot become one of the conversation, or "". @param {CompareColumn} column */
export function whyNotTakable({ answer, asked }) {
  if (!answer?.segment?.accepted) return "There is no answer yet.";
  if (state.active) return "A reply is being written in the conversation; stop it first.";
  if (!asked || asked.turn?.answers.includes(answer)) return "It is in the conversation.";
  if (asked.aside) return "It answers another prompt than the conversation.";
  if (lastTurn() !== (asked.turn ?? asked.after)) return "The conversation has gone on since.";
  return "";
}

/**
 * Make the answer of a column one of the conversation, and its settings those of the page.
 *
 * @param {CompareColumn} column
 */
export function takeOver(column) {
  const { answer, asked } = column;
  if (!answer || !asked || whyNotTakable(column)) return;
  const [{ seed: _seed, ...values }, setting] = [settingsOf(column), settingOf(column)];
  releaseControls();
  setSettings(values);
  change(setting);
  asked.turn ??= pushTurn(asked);
  asked.turn.answers.push(answer);
  asked.turn.shown = asked.turn.answers.length - 1;
  if (answer.segment?.running) {
    unfollow(answer.segment.id);
    setState({ active: answer });
  }
  saveSettings();
  keepSoon();
  changed("turns", "tokens", "settings");
}

/** @param {AskedPrompt} asked @returns {ModelTurn} */
function pushTurn({ text, mode }) {
  const chat = mode === "chat";
  if (chat) appendTurns({ role: "user", text, mode });
  /** @type {ModelTurn} */
  const turn = { role: "model", mode, given: chat ? "" : text, answers: [], shown: 0 };
  appendTurns(turn);
  return turn;
}
