// @ts-nocheck
// Transcript: the turns of the conversation, and the token in focus.

import { byId, el } from "../ui/dom.js";
import { moveFocus } from "../core-sample/controls.js";
import { AnswerEdit } from "./answer-edit.js";
import { AnswerText } from "./answer-text.js";
import { branchNote } from "../conversations/branch-note.js";
import { lastTurn, on, shownAnswer, state } from "../state.js";
import { MarkdownView } from "./markdown-view.js";
import { MessageView } from "./message-view.js";
import { nCovered } from "../turns/summary.js";
import { SummaryView } from "./summary-view.js";
import { indexOfPlace } from "../turns/turn-place.js";
import { focused, pin, point, showAnswer, view } from "../view.js";

const log = byId("log");

/**
 * What is drawn of each turn: {turn, box}; of the model's also {text: AnswerText, views}. `edit`, which
 * draws its editor: MessageView, AnswerEdit; absent from summaries.
 */
const drawn = [];
const caret = el("span", "caret");

export function setUpTranscript(openNext) {
  on("turns tokens hello", draw);
  on("turns connection hello", () => drawn.forEach(({ edit }) => edit?.drawEditor()));
  on("focus tokens", drawFocus);
  on("size", () => drawn.forEach(({ text }) => text?.refit()));
  log.addEventListener("pointerover", onOver);
  log.addEventListener("pointerleave", () => point(null));
  log.addEventListener("click", (event) => onClick(event, openNext));
  log.addEventListener("keydown", onKey);
  log.addEventListener("focusin", ({ target }) => {
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
  if (lastTurn()) drawn.at(-1).text.box.append(caret);
  else caret.remove();
}

function drawTurn(turn, i) {
  let entry = drawn[i];
  if (entry?.turn !== turn) {
    const fresh = { turn, ...newTurn(turn) };
    if (entry) entry.box.replaceWith(fresh.box);
    else log.append(fresh.box);
    entry = drawn[i] = fresh;
  }
  if (turn.role === "model") drawAnswer(entry, shownAnswer(turn));
}

function newTurn(turn) {
  const box = el("article", `turn ${turn.role === "user" ? "you" : "model"}`);
  const name =
    turn.role === "user"
      ? "You"
      : turn.mode === "completion"
        ? "Text"
        : (state.hello?.model.name ?? "Model");
  if (turn.role === "user") {
    const message = new MessageView(turn);
    box.append(el("h3", "who", name), ...message.nodes);
    return { box, edit: message };
  }
  const text = new AnswerText();
  if (turn.summary) {
    const views = new SummaryView(turn, text.box);
    box.classList.add("summary");
    box.append(el("h3", "who", "Summary"), views.box);
    return { box, text, views };
  }
  const views = new MarkdownView(turn, text.box);
  const edit = new AnswerEdit(turn, box);
  const acts = el("div", "answer-acts");
  acts.append(views.button, edit.button);
  box.append(el("h3", "who", name), acts, views.page, text.box);
  return { box, text, views, edit };
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
    const who = box.querySelector(".who");
    if (isCovered) who.append(el("span", "covered", "summarised"));
    else who.querySelector(".covered").remove();
  });
}

function drawAnswer({ turn, text, box, views }, answer) {
  box.setAttribute("aria-busy", String(answer.running && state.active === answer));
  text.draw(answer, turn.given);
  views.draw(answer);
}

// ---- focus -----------------------------------------------------------------------------------

let lit = null;

/** Highlight the focused token. */
function drawFocus() {
  const entry = drawn.find(({ text }) => text?.answer && text.answer === view.answer);
  const node = entry?.text.nodes[focused()] ?? null;
  if (node === lit) return;
  lit?.classList.remove("on");
  if (lit) lit.tabIndex = -1;
  node?.classList.add("on");
  if (node) node.tabIndex = 0;
  lit = node;
  if (view.pinned !== null && view.hover === null) node?.scrollIntoView({ block: "nearest" });
}

/** Return the answer a token's element belongs to. */
const answerOf = (node) => drawn.find(({ box }) => box.contains(node))?.text.answer ?? null;

function onOver({ target, pointerType }) {
  if (pointerType === "touch" || !target.matches(".tok") || answerOf(target) !== view.answer)
    return;
  point(Number(target.dataset.i));
}

function choose(node) {
  const answer = answerOf(node);
  if (answer && answer !== view.answer) showAnswer(answer);
  const index = Number(node.dataset.i);
  if (view.pinned !== index) pin(index);
}

function onClick({ target }, openNext) {
  if (!target.matches(".tok")) return;
  choose(target);
  openNext();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !event.target.matches(".tok")) return;
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
