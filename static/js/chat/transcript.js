// Transcript: the turns of the conversation, and the token in focus.

import { byId, el, one, targetOf } from "../ui/dom.js";
import { moveFocus } from "../core-sample/controls.js";
import { AnswerEdit } from "./answer-edit.js";
import { AnswerText } from "./answer-text.js";
import { branchNote } from "../conversations/branch-note.js";
import { lastTurn, on, state } from "../state.js";
import { MarkdownView } from "./markdown-view.js";
import { MessageView } from "./message-view.js";
import { nCovered } from "../turns/summary.js";
import { ToolCards } from "./tool-cards.js";
import { SummaryView } from "./summary-view.js";
import { indexOfPlace } from "../turns/turn-place.js";
import { focused, pin, point, showAnswer, view } from "../view.js";

const log = byId("log");

/**
 * What is drawn of each turn: `text` and `views` of the model's; `edit`, which draws its editor, absent
 * from summaries.
 *
 * @typedef {{box: HTMLElement, text?: AnswerText, views?: MarkdownView | SummaryView,
 *   edit?: MessageView | AnswerEdit, tools?: ToolCards}} Drawn
 * @typedef {Drawn & {turn: Turn}} DrawnTurn
 * @type {DrawnTurn[]}
 */
const drawn = [];
const caret = el("span", "caret");

/** @param {() => void} openNext */
export function setUpTranscript(openNext) {
  on("turns tokens hello settings", draw);
  on("turns connection hello", () => drawn.forEach(({ edit }) => edit?.drawEditor()));
  on("focus tokens", drawFocus);
  on("size", () => drawn.forEach(({ text }) => text?.refit()));
  log.addEventListener("pointerover", onOver);
  log.addEventListener("pointerleave", () => point(null));
  log.addEventListener("click", (event) => onClick(event, openNext));
  log.addEventListener("keydown", onKey);
  log.addEventListener("focusin", (event) => {
    const target = targetOf(event);
    if (target.matches(".tok")) choose(target);
  });
}

function draw() {
  document.body.dataset.phase = state.turns.length ? "talk" : "empty";
  document.body.toggleAttribute("data-writing", !!state.active);
  state.turns.forEach(drawTurn);
  for (const { box } of drawn.splice(state.turns.length)) box.remove();
  drawCovered();
  drawBranchNote();
  // The caret stays after the last word, hidden: without it a final line break would collapse.
  if (lastTurn()) drawn.at(-1)?.text?.box.append(caret);
  else caret.remove();
}

/** @param {Turn} turn @param {number} i */
function drawTurn(turn, i) {
  let entry = drawn[i];
  if (entry?.turn !== turn) {
    const fresh = { turn, ...newTurn(turn) };
    if (entry) entry.box.replaceWith(fresh.box);
    else log.append(fresh.box);
    entry = drawn[i] = fresh;
  }
  if (turn.role === "model") drawAnswer(entry, turn);
}

/** @param {Turn} turn @returns {Drawn} */
function newTurn(turn) {
  const box = el("article", `turn ${turn.role === "user" ? "you" : "model"}`);
  if (turn.role === "user") {
    const message = new MessageView(turn);
    box.append(el("h3", "ellipsis who", "You"), ...message.nodes);
    return { box, edit: message };
  }
  const text = new AnswerText();
  if (turn.summary) {
    const views = new SummaryView(turn, text.box);
    box.classList.add("summary");
    box.append(el("h3", "ellipsis who", "Summary"), views.box);
    return { box, text, views };
  }
  const views = new MarkdownView(turn, text.box);
  const edit = new AnswerEdit(turn, box);
  const acts = el("div", "answer-acts");
  acts.append(views.button, edit.button);
  // Not the name of the loaded model: another one may have written a kept conversation.
  const tools = new ToolCards(turn);
  const who = el("h3", "ellipsis who", turn.mode === "completion" ? "Text" : "Model");
  box.append(who, acts, views.page, text.box, tools.box);
  return { box, text, views, edit, tools };
}

/** Say where a branch comes from, before the turn that was edited. */
function drawBranchNote() {
  const { branchedFrom } = state.conversation;
  const at = branchedFrom && !state.replay ? indexOfPlace(state.turns, branchedFrom) : -1;
  const box = drawn[at]?.box;
  if (!box) branchNote.remove();
  else if (box.previousSibling !== branchNote) box.before(branchNote);
}

/** Mark the turns in whose place a summary is sent. */
function drawCovered() {
  const n = nCovered(state.turns);
  drawn.forEach(({ box, turn }, i) => {
    const isCovered = i < n && turn.mode === "chat" && !turn.summary;
    if (isCovered === box.hasAttribute("data-covered")) return;
    box.toggleAttribute("data-covered", isCovered);
    const who = one(box, ".who");
    if (isCovered) who.append(el("span", "covered", "summarised"));
    else one(who, ".covered").remove();
  });
}

/** @param {Drawn} drawn @param {ModelTurn} turn */
function drawAnswer({ text, box, views, tools }, turn) {
  const answer = turn.answers[turn.shown];
  box.setAttribute("aria-busy", String(answer.running && state.active === answer));
  text?.draw(answer, turn.given);
  views?.draw(answer);
  tools?.draw();
}

// ---- focus -----------------------------------------------------------------------------------

/** The element of the focused token. @type {HTMLElement | null} */
let lit = null;

/** Highlight the focused token. */
function drawFocus() {
  const entry = drawn.find(({ text }) => text?.answer && text.answer === view.answer);
  const node = entry?.text?.nodes[focused() ?? -1] ?? null;
  if (node === lit) return;
  lit?.classList.remove("on");
  if (lit) lit.tabIndex = -1;
  node?.classList.add("on");
  if (node) node.tabIndex = 0;
  lit = node;
  if (view.pinned !== null && view.hover === null) node?.scrollIntoView({ block: "nearest" });
}

/** Return the answer a token's element belongs to. @param {HTMLElement} node */
const answerOf = (node) => drawn.find(({ box }) => box.contains(node))?.text?.answer ?? null;

/** @param {PointerEvent} event */
function onOver(event) {
  const target = targetOf(event);
  if (event.pointerType === "touch" || !target.matches(".tok") || answerOf(target) !== view.answer)
    return;
  point(Number(target.dataset.i));
}

/** @param {HTMLElement} node */
function choose(node) {
  const answer = answerOf(node);
  if (answer && answer !== view.answer) showAnswer(answer);
  const index = Number(node.dataset.i);
  if (view.pinned !== index) pin(index);
}

/** @param {MouseEvent} event @param {() => void} openNext */
function onClick(event, openNext) {
  const target = targetOf(event);
  if (!target.matches(".tok")) return;
  choose(target);
  openNext();
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !targetOf(event).matches(".tok")) return;
  if (!moveFocus(event.key, false)) return;
  event.preventDefault();
  requestAnimationFrame(() =>
    requestAnimationFrame(() => {
      drawFocus();
      if (lit && lit !== document.activeElement) {
        lit.focus({ preventScroll: false });
        byId("live-status").textContent = byId("plot").getAttribute("aria-valuetext");
      }
    }),
  );
}
