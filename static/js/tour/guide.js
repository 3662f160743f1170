// Guided tour: follows one token of the run on the page in thirteen steps, from text to text.
//
// It sets up the page as a user could (stage.js), queries the engine as the instruments do
// (walk.js), and describes the results (steps.js). At the end the page is restored.

import { Missing } from "../look/shared/context.js";
import { whenPrepared } from "../look/frame.js";
import { on, ready } from "../state.js";
import { byId, focusedElement, one, targetOf } from "../ui/dom.js";
import { isComposing } from "../ui/enter-key.js";
import { lendPace } from "../chat/pace.js";
import { showAnswer, view } from "../view.js";
import { askForRun, tourStart } from "./begin.js";
import { cardHas, closeCard, drawCard, focusCard, openCard, point, setUpCard } from "./card.js";
import { notAnswered } from "./missing.js";
import { Stage } from "./stage.js";
import { STEPS } from "./steps.js";
import { plain, sentence } from "./words.js";

/**
 * The running tour:
 *   opener  the element focused before
 *   asked   it has sent its own prompt
 *   pace    at which that is answered, of `lendPace`
 *   walk    the followed token (walk.js); null before the start and after the end
 *   at      index of the step
 *   lost    the step failed because the connection or the engine was lost
 *   over    it has ended with a reason, which is shown
 *
 * @typedef {{opener: HTMLElement | null, asked: boolean, pace: ReturnType<typeof lendPace> | null,
 *   walk: Walk | null, at: number, lost: boolean, over: boolean, stage: Stage}} Tour
 */

/**
 * What stays of the card while a step is computed.
 *
 * @typedef {Omit<Parameters<typeof drawCard>[0], "parts">} CardHead
 */

/** The running tour, or null. @type {Tour | null} */
let tour = null;
/** Counts the steps shown, so that late answers are dropped. */
let turn = 0;

const GONE = "The run it followed is no longer on the page.";

setUpCard({ total: STEPS.length, onBack: back, onNext: next, onClose: endTour });
addEventListener("keydown", onKey, true);
on("hello connection turns tokens", attend);

export function startTour() {
  if (tour) return focusCard();
  const opener = focusedElement();
  const stage = new Stage();
  tour = { opener, stage, asked: false, pace: null, walk: null, at: 0, lost: false, over: false };
  point(() => ({ marks: [], keep: around(null) }));
  proceed(tour);
  return openCard();
}

/** Close the card and restore the page. */
function endTour() {
  if (!tour) return;
  const { opener, stage, walk, pace } = tour;
  const own = focusedElement();
  const within = !own || cardHas(own) || own === document.body;
  tour = null;
  turn += 1;
  pace?.end();
  if (walk && view.answer === walk.answer) showAnswer(walk.newest);
  stage.end(walk?.isHere ?? true);
  closeCard();
  if (!within) return;
  (opener?.checkVisibility?.() ? opener : byId("turns")).focus({ preventScroll: true });
}

// ---- before the first step -------------------------------------------------------------------

/** Start as soon as there is a run to show. @param {Tour} tour */
function proceed(tour) {
  const { walk, wait, stop } = tourStart(tour.asked);
  if (walk) {
    tour.walk = walk;
    tour.pace?.end();
    show(tour, walk, 0);
  } else if (stop !== undefined) halt(tour, stop);
  else if (wait !== undefined) waiting(wait);
  else {
    tour.asked = true;
    tour.pace = lendPace(null); // a chosen one may be slow, or by step
    if (askForRun()) waiting("Processing the prompt.");
    else proceed(tour);
  }
}

/** @param {string} text */
function waiting(text) {
  drawCard({ at: null, word: null, title: "One moment", parts: [plain(text)], next: "" });
}

/** End the tour with a reason. @param {Tour} tour @param {string} text */
function halt(tour, text) {
  tour.over = true;
  turn += 1;
  point(() => ({ marks: [], keep: around(null) }));
  drawCard({
    at: null,
    word: null,
    title: "The tour ends here",
    parts: [plain(text)],
    next: "Close",
  });
}

/** React to changes of the page: the tour may start, resume or end. */
function attend() {
  if (!tour || tour.over) return;
  const { walk, at } = tour;
  if (!walk) proceed(tour);
  else if (!STEPS[at].follows && !walk.shown) halt(tour, GONE);
  else if (tour.lost && ready()) show(tour, walk, at);
}

// ---- steps -----------------------------------------------------------------------------------

function next() {
  if (!tour) return;
  if (tour.over || tour.at === STEPS.length - 1) endTour();
  else if (tour.walk) show(tour, tour.walk, tour.at + 1);
}

/** Go on by arrow key, which never closes the tour: one press too many should not. */
function onward() {
  if (tour && tour.at !== STEPS.length - 1 && !tour.over) next();
}

function back() {
  if (tour?.walk && !tour.over && tour.at > 0) show(tour, tour.walk, tour.at - 1);
}

/** @param {Tour} tour @param {Walk} walk @param {number} at */
async function show(tour, walk, at) {
  const { stage } = tour;
  const step = STEPS[at];
  const mine = (turn += 1);
  Object.assign(tour, { at, lost: false });
  const last = at === STEPS.length - 1;
  const card = { at, word: walk.word, title: step.title, next: last ? "Done" : "Next" };
  stage.show(step);
  if (!step.follows && !walk.shown) return halt(tour, GONE);
  if (walk.shown) showAnswer(step.follows ? walk.newest : walk.answer);
  stage.look({ index: walk.index, row: null });
  drawCard({ ...card, parts: null });
  point(() => ({ marks: [], keep: around(step.open) }));
  try {
    if (step.open) await whenPrepared(step.open);
    if (mine !== turn) return;
    const found = await step.find?.(walk);
    if (mine !== turn) return;
    stage.look(step.at?.(walk, found) ?? { index: walk.index, row: null });
    stage.entered(step.enter?.(walk, found));
    drawCard({ ...card, parts: step.text(walk, found) });
    point(() => ({ marks: step.marks(walk, found), keep: around(step.open) }));
  } catch (error) {
    if (mine === turn) failed(tour, error, card);
  }
  return undefined;
}

/** Panels the card should not cover. @param {string | null} open */
const around = (open) =>
  [".top", ...(open ? ["#look"] : [".talk", ".layers"])].map((part) => [one(document, part)]);

/**
 * `error`: the server's error, a Missing, or a fault of the page.
 *
 * @param {Tour} tour
 * @param {unknown} error
 * @param {CardHead} card
 */
function failed(tour, error, card) {
  const problem = /** @type {Problem} */ (error);
  tour.lost = problem.code === "lost" || !ready();
  const parts = tour.lost
    ? sentence`The model cannot be reached. The tour continues automatically once it can.`
    : notAnswered(problem);
  drawCard({ ...card, parts });
  if (error instanceof Error && !(error instanceof Missing)) reportError(error);
}

// ---- keys ------------------------------------------------------------------------------------

const KEYS = new Map([["Escape", endTour], ["ArrowRight", onward], ["ArrowLeft", back]]);

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (!tour || isComposing(event) || document.querySelector("dialog[open]")) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = KEYS.get(event.key);
  const target = targetOf(event);
  const own = cardHas(target) || target === document.body;
  if (!act || (event.key !== "Escape" && !own)) return;
  event.preventDefault();
  event.stopPropagation();
  act();
}
