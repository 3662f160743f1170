// The card of the walk: what it says, where it stands, and its buttons.

import { byId, el, setText, setVars } from "../dom.js";
import { changed } from "../state.js";
import { phone } from "../sheets.js";
import { placeOf } from "./place.js";
import { boxesOf, boxOf, bringIntoView, drawRings } from "./rings.js";

const card = byId("tour");
const body = byId("tour-body");
const text = byId("tour-text");
const steps = byId("tour-steps");
/** From here on the whole page is in the window. */
const wide = matchMedia("(min-width: 1360px)");
/** After its answer came an instrument has drawn and scrolled within this time. */
const SETTLES_MS = 600;
/** What takes longer than this is said to take time. */
const BUSY_AFTER_MS = 200;

/** Finds what is spoken about: {marks, keep}, lists of lists of elements. */
let find = () => ({ marks: [], keep: [] });
/** What was measured last, to leave the page alone while nothing moved. */
let measured = "";
/** Until then what is spoken about is kept in view; after that scrolling is the person's. */
let settled = 0;
let frame = 0;
let busyTimer = 0;

/** `total`: steps of the walk. */
export function setUpCard({ total, onBack, onNext, onClose }) {
  steps.replaceChildren(...Array.from({ length: total }, () => el("li")));
  byId("tour-back").addEventListener("click", onBack);
  byId("tour-next").addEventListener("click", onNext);
  byId("tour-close").addEventListener("click", onClose);
  new ResizeObserver(() => {
    setVars(document.body, { "--tour-h": `${card.offsetHeight}px` });
    measured = "";
    if (!card.hidden) changed("size");
  }).observe(card);
}

/** Show the card and give it the keyboard. */
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

export const cardHas = (node) => card.contains(node);
export const focusCard = () => card.focus({ preventScroll: true });

/**
 * `at`: number of the step, null before and after; `word`: of the followed token (words.js), or null;
 * `parts`: its sentences, null while they are computed; `next`: what the button says.
 */
export function drawCard({ at, word, title, parts, next = "Next" }) {
  const total = steps.children.length;
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

/** A button that was pressed last may be gone now; the one to go on with is the next best. */
function keepFocus() {
  const { activeElement: own } = document;
  const gone = own === document.body || own?.disabled || own?.hidden;
  if (!gone && own !== card) return;
  const go = byId("tour-next");
  (go.hidden ? card : go).focus({ preventScroll: true });
}

function drawText(parts) {
  clearTimeout(busyTimer);
  body.setAttribute("aria-busy", String(!parts));
  if (!parts) {
    text.replaceChildren();
    busyTimer = setTimeout(() => setText(text, "Computing …"), BUSY_AFTER_MS);
    return;
  }
  text.replaceChildren(...parts.map(nodeOf));
}

const nodeOf = ({ kind, text: words }) =>
  kind === "figure" ? el("b", "", words) : kind === "word" ? el("span", "tour-quote", words) : words;

/** `finder` says what the card speaks about from now on. */
export function point(finder) {
  find = finder;
  measured = "";
  settled = performance.now() + SETTLES_MS;
}

// ---- its place -------------------------------------------------------------------------------

/** Instruments draw when their answers come and say so to nobody: every frame is looked at. */
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

/** Where the card stands unless it would cover something: over the part that no step speaks about. */
function homeOf({ bottom }) {
  const box = boxOf(byId("cands").closest(".next"));
  return wide.matches && box.bottom <= bottom ? box : null;
}

/** On a phone the card stands where the tabs were (tour.css), and the page above it. */
function place(marks, keep) {
  if (phone.matches) {
    card.style.removeProperty("left");
    card.style.removeProperty("top");
    return;
  }
  const room = { left: 0, top: 0, right: document.documentElement.clientWidth, bottom: innerHeight };
  const size = [card.offsetWidth, card.offsetHeight];
  const { left, top } = placeOf({ room, size, marks, keep, home: homeOf(room) });
  Object.assign(card.style, { left: `${left}px`, top: `${top}px` });
}
