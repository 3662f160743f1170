// Transcript: one element per token, appended once per frame.

import { byId, el, setText } from "../ui/dom.js";
import { moveFocus } from "../core/controls.js";
import { bytes } from "../ui/format.js";
import { partsOf } from "./attachments.js";
import { describeChange } from "../panels/sampling-settings.js";
import { lastTurn, on, shownAnswer, state } from "../state.js";
import { MarkdownView } from "./markdown-view.js";
import { TextChunks } from "./text-chunks.js";
import { describeDropped } from "./truncation.js";
import { focused, pin, point, showAnswer, view } from "../view.js";

const log = byId("log");
const scroller = byId("turns");
/** The transcript scrolls with the text while its end is this near. */
const NEAR_END_PX = 40;

/** Elements per turn: {turn, answer, edition, shown, box, nodes, chunks}. */
const drawn = [];
let stick = true;
const caret = el("span", "caret");

export function setUpTranscript(openNext) {
  on("turns tokens hello", draw);
  on("focus tokens", drawFocus);
  on("size", () => drawn.forEach(({ chunks }) => chunks?.refit()));
  scroller.addEventListener("scroll", onScroll, { passive: true });
  // A smooth scroll upwards starts within NEAR_END_PX, so the wheel itself stops the following.
  scroller.addEventListener(
    "wheel",
    ({ deltaY }) => {
      if (deltaY < 0) stick = false;
    },
    { passive: true },
  );
  log.addEventListener("pointerover", onOver);
  log.addEventListener("pointerleave", () => point(null));
  log.addEventListener("click", (event) => onClick(event, openNext));
  log.addEventListener("keydown", onKey);
  log.addEventListener("focusin", ({ target }) => {
    if (target.matches(".tok")) choose(target);
  });
  new ResizeObserver(scrollToEnd).observe(scroller);
}

let last = { top: 0, height: 0 };

/** Scrolling up stops following, reaching the end resumes it; a text that shrank does neither. */
function onScroll() {
  const { scrollTop: top, scrollHeight: height, clientHeight } = scroller;
  if (height - top - clientHeight < NEAR_END_PX) stick ||= top > last.top;
  if (top < last.top - 1 && height >= last.height) stick = false;
  last = { top, height };
}

/** Keep the end of the text in view. Set up last: scrolling forces the layout of the frame. */
export function setUpFollowing() {
  on("turns tokens hello", scrollToEnd);
}

/** Scroll to the end of the conversation. */
export function goToEnd() {
  stick = true;
  scrollToEnd();
}

function scrollToEnd() {
  if (stick && state.turns.length) scroller.scrollTop = scroller.scrollHeight;
}

function draw() {
  document.body.dataset.phase = state.turns.length ? "talk" : "empty";
  document.body.toggleAttribute("data-writing", !!state.active);
  state.turns.forEach(drawTurn);
  for (const { box } of drawn.splice(state.turns.length)) box.remove();
  // The caret stays after the last word, hidden: without it a final line break would collapse.
  if (lastTurn()) drawn.at(-1).text.append(caret);
  else caret.remove();
}

function drawTurn(turn, i) {
  let entry = drawn[i];
  if (entry?.turn !== turn) {
    const fresh = { turn, ...newTurn(turn), answer: null };
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
    const { text: said, files } = partsOf(turn);
    const text = el("p", "said", said);
    box.append(el("h3", "who", name), ...files.map(newFile), text);
    return { box, text };
  }
  const text = el("p", "answer");
  const views = new MarkdownView(turn, text);
  box.append(el("h3", "who", name), ...views.nodes, text);
  return { box, text, views };
}

/** An attached file: its name, and what was put into the prompt for it. */
function newFile({ name, block }) {
  const box = el("details", "attached-file");
  const title = el("summary");
  title.append(el("b", "", name), ` ${bytes(new TextEncoder().encode(block).length)}`);
  const text = el("pre", "", block.trimEnd());
  text.tabIndex = 0; // it may scroll
  box.append(title, text);
  return box;
}

function drawAnswer(entry, answer) {
  const { turn, text, box } = entry;
  if (entry.answer !== answer || entry.edition !== answer.edition) {
    text.replaceChildren();
    if (turn.given) text.append(el("span", "given", turn.given));
    Object.assign(entry, { answer, edition: answer.edition, segment: 0, shown: 0, marked: 0 });
    entry.dropped = "";
    entry.nodes = [];
    entry.marks = new Map();
    entry.chunks = new TextChunks(text, entry.nodes);
  }
  box.setAttribute("aria-busy", String(answer.running && state.active === answer));
  drawDropped(entry, answer);
  const fragment = document.createDocumentFragment();
  for (; entry.segment < answer.segments.length; entry.segment += 1) {
    const segment = answer.segments[entry.segment];
    if (segment.textOnly !== null) {
      fragment.append(el("span", "plain", segment.textOnly));
      continue;
    }
    for (const end = segment.base + segment.nTokens; entry.shown < end; entry.shown += 1)
      entry.nodes.push(putToken(fragment, answer, entry.shown));
    if (segment === answer.segment) break; // it may grow
  }
  text.insertBefore(fragment, caret.parentNode === text ? caret : null);
  drawMarks(entry, answer);
  entry.chunks.close();
  entry.views.draw(answer);
}

/** Say before the answer which turns it was written without; known once it is accepted. */
function drawDropped(entry, answer) {
  const words = describeDropped(answer);
  if (words === entry.dropped) return;
  entry.dropped = words;
  const mark = el("span", "mark-change dropped", words);
  mark.title = "The conversation is longer than the context.";
  entry.text.prepend(mark);
}

/** Probabilities at or below which a token gets one, two or three underlines. */
const UNDERLINE = [0.4, 0.2, 0.08];

function putToken(parent, answer, index) {
  if (index && answer.tokens[index].segment.base === index)
    parent.append(el("span", "mark-change", "continued"));
  const { text, logprob, eos, draft } = answer.tokens[index];
  const space = /^ +(?=\S)/.exec(text)?.[0] ?? "";
  if (space) parent.append(space);
  const node = el(
    "span",
    eos ? "tok eos" : text === "" ? "tok part" : "tok",
    text.slice(space.length),
  );
  const p = Math.exp(logprob);
  node.dataset.i = index;
  node.dataset.q = UNDERLINE.filter((bound) => p <= bound).length;
  if (draft) node.dataset.draft = draft.accepted ? "accepted" : "rejected";
  node.tabIndex = -1;
  parent.append(node);
  return node;
}

/** Draw marks before the first token they apply to; earlier marks of a drag have no label. */
function drawMarks(entry, answer) {
  for (; entry.marked < answer.marks.length; entry.marked += 1) {
    const { index, shown } = answer.marks[entry.marked];
    const token = entry.nodes[index];
    if (!token) break;
    let mark = entry.marks.get(index);
    if (!mark) {
      mark = el("span", "mark-change");
      mark.dataset.at = index;
      entry.marks.set(index, mark);
      const { previousSibling: space } = token;
      token.parentNode.insertBefore(mark, space?.nodeType === Node.TEXT_NODE ? space : token);
    }
    setText(mark, shown.map(describeChange).join(", "));
  }
  entry.marked = Math.max(0, entry.marked - 2); // the last ones may still change
}

// ---- focus -----------------------------------------------------------------------------------

let lit = null;

/** Highlight the focused token. */
function drawFocus() {
  const entry = drawn.find(({ answer }) => answer && answer === view.answer);
  const node = entry?.nodes[focused()] ?? null;
  if (node === lit) return;
  lit?.classList.remove("on");
  if (lit) lit.tabIndex = -1;
  node?.classList.add("on");
  if (node) node.tabIndex = 0;
  lit = node;
  if (view.pinned !== null && view.hover === null) node?.scrollIntoView({ block: "nearest" });
}

/** Return the answer a token's element belongs to. */
const answerOf = (node) => drawn.find(({ box }) => box.contains(node))?.answer ?? null;

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
