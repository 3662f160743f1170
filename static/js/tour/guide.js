// @ts-nocheck
// Guided tour: follows one token of the run on the page in thirteen steps, from text to text.
//
// It sets up the page as a user could (stage.js), queries the engine as the instruments do
// (walk.js), and describes the results (steps.js). At the end the page is restored.

import { Missing } from "../look/shared/context.js";
import { whenPrepared } from "../look/frame.js";
import { on, ready } from "../state.js";
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
 * The running tour, or null:
 *   opener  the element focused before
 *   asked   it has sent its own prompt
 *   pace    at which that is answered, of `lendPace`
 *   walk    the followed token (walk.js); null before the start and after the end
 *   at      index of the step
 *   lost    the step failed because the connection or the engine was lost
 */
let tour = null;
/** Counts the steps shown, so that late answers are dropped. */
let turn = 0;

const GONE = "The run it followed is no longer on the page.";

setUpCard({ total: STEPS.length, onBack: back, onNext: next, onClose: endTour });
addEventListener("keydown", onKey, true);
on("hello connection turns tokens", attend);

export function startTour() {
  if (tour) return focusCard();
  const opener = document.activeElement;
  tour = { opener, asked: false, walk: null, at: null, lost: false, over: false };
  tour.stage = new Stage();
  point(() => ({ marks: [], keep: around(null) }));
  proceed();
  return openCard();
}

/** Close the card and restore the page. */
function endTour() {
  const { opener, stage, walk, pace } = tour;
  const within = cardHas(document.activeElement) || document.activeElement === document.body;
  tour = null;
  turn += 1;
  pace?.end();
  if (walk && view.answer === walk.answer) showAnswer(walk.newest);
  stage.end(!walk || view.answer === walk.answer);
  closeCard();
  if (!within) return;
  const target = opener?.checkVisibility?.() ? opener : document.getElementById("turns");
  target.focus({ preventScroll: true });
}

// ---- before the first step -------------------------------------------------------------------

/** Start as soon as there is a run to show. */
function proceed() {
  const { walk, wait, stop, ask } = tourStart(tour.asked);
  if (walk) {
    tour.walk = walk;
    tour.pace?.end();
    return show(0);
  }
  if (stop) return halt(stop);
  if (!ask) return waiting(wait);
  tour.asked = true;
  tour.pace = lendPace(null); // a chosen one may be slow, or by step
  return askForRun() ? waiting("Processing the prompt.") : proceed();
}

function waiting(text) {
  drawCard({ at: null, word: null, title: "One moment", parts: [plain(text)], next: "" });
}

/** End the tour with a reason. */
function halt(text) {
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
  if (!tour.walk) proceed();
  else if (!STEPS[tour.at].follows && !tour.walk.shown) halt(GONE);
  else if (tour.lost && ready()) show(tour.at);
}

// ---- steps -----------------------------------------------------------------------------------

function next() {
  if (!tour) return;
  if (tour.over || tour.at === STEPS.length - 1) endTour();
  else if (tour.walk) show(tour.at + 1);
}

/** Go on by arrow key, which never closes the tour: one press too many should not. */
function onward() {
  if (tour.at !== STEPS.length - 1 && !tour.over) next();
}

function back() {
  if (tour?.walk && !tour.over && tour.at > 0) show(tour.at - 1);
}

async function show(at) {
  const { walk, stage } = tour;
  const step = STEPS[at];
  const mine = (turn += 1);
  Object.assign(tour, { at, lost: false });
  const last = at === STEPS.length - 1;
  const card = { at, word: walk.word, title: step.title, next: last ? "Done" : "Next" };
  stage.show(step);
  if (!step.follows && !walk.shown) return halt(GONE);
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
    if (mine === turn) failed(error, card);
  }
}

/** Panels the card should not cover. */
const around = (open) =>
  [".top", ...(open ? ["#look"] : [".talk", ".layers"])].map((part) => [
    document.querySelector(part),
  ]);

/** `error`: the server's error, a Missing, or a fault of the page. */
function failed(error, card) {
  tour.lost = error.code === "lost" || !ready();
  const parts = tour.lost
    ? sentence`The model cannot be reached. The tour continues automatically once it can.`
    : notAnswered(error);
  drawCard({ ...card, parts });
  if (error instanceof Error && !(error instanceof Missing)) reportError(error);
}

// ---- keys ------------------------------------------------------------------------------------

function onKey(event) {
  if (!tour || isComposing(event) || document.querySelector("dialog[open]")) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { Escape: endTour, ArrowRight: onward, ArrowLeft: back }[event.key];
  const own = cardHas(event.target) || event.target === document.body;
  if (!act || (event.key !== "Escape" && !own)) return;
  event.preventDefault();
  event.stopPropagation();
  act();
}
