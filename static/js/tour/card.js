// Card of the guide: text, question, position and buttons.

import { markTerms } from "../glossary/terms.js";
import { byId, el, focusedElement, one, setText, setVars } from "../ui/dom.js";
import { changed } from "../state.js";
import { setExercise, setUpExercise } from "./exercise.js";
import { phone } from "../ui/bottom-sheets.js";
import { placeOf } from "./place.js";
import { boxesOf, boxOf, bringIntoView, drawRings } from "./rings.js";

/** Elements to outline, and those to keep uncovered. @typedef {{marks: Outlined[][], keep: Outlined[][]}} Marks */

const card = byId("tour");
const body = byId("tour-body");
const text = byId("tour-text");
const steps = byId("tour-steps");
/** From this width the whole page fits into the window. */
const wide = matchMedia("(min-width: 1360px)");
/** An instrument has drawn and scrolled within this time after its answer. */
const SETTLES_MS = 600;
/** "Computing …" is shown after this time. */
const BUSY_AFTER_MS = 200;

/**
 * Returns the elements to outline and those to keep uncovered: {marks, keep}, lists of lists.
 *
 * @type {() => Marks}
 */
let find = () => ({ marks: [], keep: [] });
/** The last layout, to redraw only when something moved. */
let measured = "";
/** Until this time the outlined elements are scrolled into view; later, scrolling is the user's. */
let settled = 0;
let frame = 0;
let busyTimer = 0;

/** @param {{onBack: () => void, onNext: () => void, onClose: () => void}} on */
export function setUpCard({ onBack, onNext, onClose }) {
  setUpExercise();
  byId("tour-back").addEventListener("click", onBack);
  byId("tour-next").addEventListener("click", onNext);
  byId("tour-close").addEventListener("click", onClose);
  new ResizeObserver(() => {
    setVars(document.body, { "--tour-h": `${card.offsetHeight}px` });
    measured = "";
    if (!card.hidden) changed("size");
  }).observe(card);
}

/** Show the card and focus it. */
export function openCard() {
  card.hidden = false;
  document.body.dataset.tour = "";
  focusCard();
  keepFocus();
  changed("size");
  frame ||= requestAnimationFrame(follow);
}

export function closeCard() {
  card.hidden = true;
  delete document.body.dataset.tour;
  cancelAnimationFrame(frame);
  frame = 0;
  clearTimeout(busyTimer);
  drawRings([]);
  changed("size");
}

/** @param {Node} node */
export const cardHas = (node) => card.contains(node);
export const focusCard = () => card.focus({ preventScroll: true });

/**
 * `at`: index of the step, null before and after the steps; `word`: the followed token (words.js),
 * or null; `parts`: the text, null while it is computed; `next`: label of the button.
 *
 * @param {{route: Route, at: number | null, word: SentencePart | null, title: string,
 *   parts: SentencePart[] | null, next?: string, exercise?: Exercise | null}} options
 */
export function drawCard({ route, at, word, title, parts, next = "Next", exercise = null }) {
  const total = route.steps.length;
  if (steps.children.length !== total)
    steps.replaceChildren(...Array.from({ length: total }, () => el("li")));
  setText(byId("tour-lesson"), route.title);
  setExercise(exercise);
  const walking = at !== null;
  setText(byId("tour-count"), walking ? `${at + 1} / ${total}` : "");
  setText(byId("tour-word"), word?.text ?? "");
  [...steps.children].forEach((step, i) => {
    step.className = !walking || i > at ? "" : i === at ? "now" : "done";
  });
  setText(byId("tour-title"), title);
  drawText(parts);
  setText(byId("tour-next"), next);
  byId("tour-next").hidden = next === "";
  byId("tour-back").hidden = !walking;
  byId("tour-back").disabled = at === 0;
  if (!card.hidden) keepFocus();
}

/** Move the focus to the next button if the focused one is gone. */
function keepFocus() {
  const own = focusedElement();
  const gone = own === document.body || own?.hidden || own?.matches(":disabled");
  if (!gone && own !== card) return;
  const go = byId("tour-next");
  (go.hidden ? card : go).focus({ preventScroll: true });
}

/** @param {SentencePart[] | null} parts */
function drawText(parts) {
  clearTimeout(busyTimer);
  body.setAttribute("aria-busy", String(!parts));
  if (!parts) {
    text.replaceChildren();
    busyTimer = setTimeout(() => setText(text, "Computing …"), BUSY_AFTER_MS);
    return;
  }
  text.replaceChildren(...parts.map(nodeOf));
  markTerms(text);
}

/** @param {SentencePart} part */
function nodeOf({ kind, text: words }) {
  if (kind === "figure") return el("b", "", words);
  return kind === "word" ? el("span", "tour-quote", words) : words;
}

/** Set the finder of the elements the card is about. @param {() => Marks} finder */
export function point(finder) {
  find = finder;
  measured = "";
  settled = performance.now() + SETTLES_MS;
}

// ---- its place -------------------------------------------------------------------------------

/** Place the card in every frame: instruments draw without notice when their answers arrive. */
function follow() {
  frame = requestAnimationFrame(follow);
  const { marks, keep } = find();
  if (byId("look").hasAttribute("aria-busy")) settled = performance.now() + SETTLES_MS;
  else if (performance.now() < settled) bringIntoView(marks);
  const boxes = boxesOf(marks);
  const stay = boxesOf(keep);
  const now = JSON.stringify([boxes, stay, innerWidth, innerHeight, card.offsetHeight]);
  if (now === measured) return;
  measured = now;
  drawRings(boxes);
  place(boxes, stay);
}

/**
 * Preferred place of the card: over the Next token panel, the subject of no step, if it fits.
 *
 * @param {WindowBox} room
 */
function homeOf({ bottom }) {
  const box = boxOf(one(document, ".next:has(#cands)"));
  return wide.matches && box.bottom <= bottom ? box : null;
}

/**
 * Place the card beside the marks. On a phone it replaces the tabs (tour.css).
 *
 * @param {WindowBox[]} marks
 * @param {WindowBox[]} keep
 */
function place(marks, keep) {
  if (phone.matches) {
    card.style.removeProperty("left");
    card.style.removeProperty("top");
    return;
  }
  const { clientWidth } = document.documentElement;
  const room = { left: 0, top: 0, right: clientWidth, bottom: innerHeight };
  const size = [card.offsetWidth, card.offsetHeight];
  const { left, top } = placeOf({ room, size, marks, keep, home: homeOf(room) });
  Object.assign(card.style, { left: `${left}px`, top: `${top}px` });
}
