// Composer: the prompt field, its token count, the context gauge and the chat/completion switch.

import { closeSheet } from "../ui/bottom-sheets.js";
import { byId, inputOf, setText, setVars } from "../ui/dom.js";
import { count, plural } from "../ui/format.js";
import { isComposing, isSendKey } from "../ui/enter-key.js";
import { growWithText } from "../ui/grow.js";
import { count as countTokens, latest } from "../net/inspect.js";
import {
  attachedFiles,
  fileMarks,
  setAttached,
  setUpAttachments,
  withFiles,
} from "./attachments.js";
import { toolsField } from "./answer-fields.js";
import { partsOf } from "../turns/message-parts.js";
import { saveDraft, savedDraft, saveSettings } from "../turns/persist.js";
import { submitPrompt, messagesBefore } from "./session.js";
import { isMakingRoom, makesRoom, sendWithRoom } from "./summarize.js";
import { startNew } from "../conversations/library.js";
import { changed, lastTurn, on, ready, setState, shownAnswer, state } from "../state.js";
import { goToEnd } from "../ui/following.js";

const field = byId("prompt");
const COUNT_AFTER_MS = 150;
/** Shares of the context from which the gauge changes colour. */
const HIGH = 0.75;
const FULL = 0.9;

const NO_TEMPLATE = "This model has no chat template; it can only continue text.";

/** Is there a mouse, and so most likely a keyboard? */
const hasKeyboard = matchMedia("(hover: hover) and (pointer: fine)");

let timer = 0;

export function setUpComposer() {
  const draft = savedDraft();
  if (field.value === "") field.value = draft.text; // else it was typed before this code had loaded
  setAttached(draft.files);
  setUpAttachments(onInput);
  byId("composer").addEventListener("submit", onSubmit);
  field.addEventListener("input", onInput);
  field.addEventListener("keydown", onKey);
  byId("mode").addEventListener("change", (event) => setMode(/** @type {Mode} */ (inputOf(event).value)));
  on("connection hello turns tokens counted settings", draw);
  on("hello connection turns system", countSoon);
  if (document.activeElement === document.body) focusField({ preventScroll: true });
}

/** Focus the field, but not where a keyboard would come up over the page. @param {FocusOptions} [options] */
function focusField(options) {
  if (hasKeyboard.matches) field.focus(options);
}

/** Fill the field with a text, as if typed. @param {string} text */
export function setPrompt(text) {
  field.value = text;
  focusField();
  field.setSelectionRange(text.length, text.length);
  onInput();
}

/**
 * Put a refused prompt {text, files} back, unless a new one is being typed.
 *
 * @param {{text: string, files: AttachedText[]}} options
 */
export function restorePrompt({ text, files }) {
  if (!isComposerEmpty()) return;
  setAttached(files);
  if (text || files.length) setPrompt(text);
}

/** The text that Enter sends: attached files, then what was typed. */
function promptNow() {
  const text = state.mode === "chat" ? field.value.trim() : field.value;
  return text.trim() === "" && !attachedFiles().length ? "" : withFiles(text);
}

/** Choose what the next prompt is: "chat" or "completion". @param {Mode} mode */
export function setMode(mode) {
  // Earlier turns stay: chat turns form the context of a chat, a completion stands alone.
  if (mode !== state.mode && state.turns.length && !state.active) setState({ counted: null });
  setState({ mode });
  saveSettings();
}

/** @param {SubmitEvent} event */
function onSubmit(event) {
  event.preventDefault();
  const text = promptNow();
  if (text === "" || !ready() || state.active) return;
  const files = fileMarks(attachedFiles()); // those of `text`, which may wait
  const send = () => sendNow(text, files);
  if (makesRoom()) sendWithRoom(text, send);
  else send();
  goToEnd();
}

/** Is there neither a text nor a file in the composer? */
export const isComposerEmpty = () => field.value === "" && !attachedFiles().length;

/** Why a message that was written elsewhere could not wait in the composer for room, or "". */
export const whyFieldTaken = () =>
  isMakingRoom() || (makesRoom() && !isComposerEmpty())
    ? "It would wait in the message field until the oldest turns are summarised, but another " +
      "message is there. Send or delete that first."
    : "";

/**
 * Send a message {text, files} that was written elsewhere. Returns false and sets `state.problem` when
 * it cannot be sent. If room has to be made for it, it waits in the composer, which has to be empty.
 *
 * @param {{text: string, files: AttachedText[]}} options
 */
export function sendMessage({ text, files }) {
  const message = whyFieldTaken();
  if (message) {
    setState({ problem: { code: "summary", message } });
    return false;
  }
  if (makesRoom()) {
    restorePrompt({ text, files });
    byId("composer").requestSubmit();
    return true;
  }
  const isSent = submitPrompt(withFiles(text, files), {}, state.capture, fileMarks(files));
  if (isSent) goToEnd();
  return isSent;
}

/**
 * Send what is in the composer, and empty it. `overrides` as in `submitPrompt`. Returns false when it
 * cannot be sent.
 *
 * @param {string} text
 * @param {ReplayFile.AttachedFile[]} files
 * @param {Overrides} [overrides]
 */
export function sendNow(text, files, overrides = {}) {
  if (!submitPrompt(text, overrides, state.capture, files)) return false;
  field.value = "";
  setAttached([]);
  onInput();
  return true;
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (isComposing(event)) return;
  if (isSendKey(event)) {
    event.preventDefault();
    byId("composer").requestSubmit();
  } else if (event.key === "ArrowUp" && field.value === "") {
    const last = state.turns.findLast((turn) => turn.role === "user" || turn.given);
    if (!last) return;
    event.preventDefault();
    const { text, files } = last.role === "user" ? partsOf(last) : { text: last.given, files: [] };
    setAttached(files);
    setPrompt(text);
  }
}

function onInput() {
  setState({ counted: null });
  saveDraft(field.value, attachedFiles());
  growWithText(field);
  countSoon();
}

function countSoon() {
  clearTimeout(timer);
  timer = setTimeout(askCount, COUNT_AFTER_MS);
}

function askCount() {
  const text = promptNow();
  if (text === "" || !ready()) return;
  /** @type {Countable} */
  const what =
    state.mode === "chat"
      ? { messages: [...messagesBefore(), { role: "user", content: text }], ...toolsField() }
      : { prompt: text };
  if (JSON.stringify(what).length * 1.02 >= (state.hello?.limits.message_bytes ?? 0)) return;
  latest("count", what, countTokens).then(onCounted, onNotCounted);
}

/** @param {ToPage.Counted} counted */
function onCounted({ tokens }) {
  setState({ counted: { tokens } });
}

/** @param {Problem} error */
function onNotCounted(error) {
  if (error.code === "lost") return; // shown elsewhere; counted again after reconnecting
  setState({ problem: error });
  changed("settings");
}

function draw() {
  const chat = state.mode === "chat";
  const mayChat = state.hello?.model.chat ?? true;
  for (const input of byId("mode").querySelectorAll("input")) {
    input.checked = input.value === state.mode;
    input.disabled = input.value === "chat" && !mayChat;
    input.title = input.disabled ? NO_TEMPLATE : "";
  }
  setText(byId("prompt-label"), chat ? "Message" : "Text to continue");
  field.placeholder = chat ? "Write a message" : "Write the beginning of a text";
  const empty = promptNow() === "";
  const waits = isMakingRoom();
  field.readOnly = byId("attach").disabled = waits;
  byId("send").disabled = !ready() || !!state.active || empty || waits;
  drawCount(empty);
}

/** @param {boolean} empty */
function drawCount(empty) {
  const { counted } = state;
  setText(byId("count"), empty ? "" : counted ? plural(counted.tokens, "token") : "…");
  const context = state.hello?.limits.context ?? 0;
  const used = !empty && counted ? counted.tokens : (shownAnswer(lastTurn())?.segment?.used ?? 0);
  const share = context ? used / context : 0;
  const gauge = byId("gauge");
  gauge.dataset.level = share >= FULL ? "full" : share >= HIGH ? "high" : "";
  gauge.setAttribute("aria-valuemax", String(context || 1));
  gauge.setAttribute("aria-valuenow", String(Math.min(used, context || 1)));
  gauge.setAttribute("aria-valuetext", `${count(used)} of ${count(context)} tokens`);
  setVars(gauge, { "--v": Math.min(1, share) });
  setText(byId("ctx"), context ? `${count(used)} / ${count(context)}` : "");
}

/** Leave the conversation for an empty one; a replay stays open. */
export function startNewChat() {
  if (state.replay) return;
  startNew();
  closeSheet();
  focusField();
}
