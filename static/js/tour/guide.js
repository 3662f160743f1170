// Guide of the tour and of lessons: leads through the steps of a route, which follow one token of a run.
//
// It sets up the page as a user could (stage.js), queries the engine as the instruments do
// (walk.js), and describes the results (tour.js, lessons/). At the end the page is restored.

import { Missing } from "../look/shared/context.js";
import { whenPrepared } from "../look/frame.js";
import { setMode } from "../chat/composer.js";
import { on, ready, state } from "../state.js";
import { byId, focusedElement, one, targetOf } from "../ui/dom.js";
import { isComposing } from "../ui/enter-key.js";
import { lendPace } from "../chat/pace.js";
import { showAnswer, view } from "../view.js";
import { askForRun, routeStart } from "./begin.js";
import { cardHas, closeCard, drawCard, focusCard, openCard, point, setUpCard } from "./card.js";
import { notAnswered } from "./missing.js";
import { Stage } from "./stage.js";
import { plain, sentence } from "./words.js";

/**
 * The running tour, or lesson:
 *   route   its steps
 *   onEnd   called at its end; `isFinished`: after the last step
 *   opener  the element focused before
 *   asked   it has sent its own prompt
 *   pace    at which that is answered, of `lendPace`
 *   modes   that of the page before it was sent, and that it has
 *   walk    the followed token (walk.js); null before the start and after the end
 *   at      index of the step
 *   lost    the step failed because the connection or the engine was lost
 *   over    it has ended with a reason, which is shown
 *
 * @typedef {{route: Route, onEnd: (isFinished: boolean) => void, opener: HTMLElement | null,
 *   asked: boolean, pace: ReturnType<typeof lendPace> | null, modes: {before: Mode, own: Mode},
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

setUpCard({ onBack: back, onNext: next, onClose: () => endTour() });
addEventListener("keydown", onKey, true);
on("hello connection turns tokens", attend);

/**
 * Lead through a route, or focus the card if that is going on; another one ends.
 *
 * @param {Route} route
 * @param {(isFinished: boolean) => void} [onEnd]
 */
export function startGuide(route, onEnd = () => {}) {
  if (tour?.route === route) return focusCard();
  endTour();
  const opener = focusedElement();
  const begun = { asked: false, pace: null, walk: null, at: 0, lost: false, over: false };
  const modes = { before: state.mode, own: state.mode };
  tour = { route, onEnd, opener, stage: new Stage(), modes, ...begun };
  point(() => ({ marks: [], keep: around(null) }));
  proceed(tour);
  return openCard();
}

/** Close the card and restore the page. */
function endTour(isFinished = false) {
  if (!tour) return;
  const { opener, stage, walk, pace, modes, onEnd } = tour;
  const own = focusedElement();
  const within = !own || cardHas(own) || own === document.body;
  tour = null;
  turn += 1;
  pace?.end();
  if (modes.own === state.mode && modes.own !== modes.before) setMode(modes.before);
  if (walk && view.answer === walk.answer) showAnswer(walk.newest);
  stage.end(walk?.isHere ?? true);
  closeCard();
  if (within) (opener?.checkVisibility?.() ? opener : byId("turns")).focus({ preventScroll: true });
  onEnd(isFinished);
}

// ---- before the first step -------------------------------------------------------------------

/** Start as soon as there is a run to show. @param {Tour} tour */
function proceed(tour) {
  const { route } = tour;
  const { walk, wait, stop } = routeStart(route, tour.asked);
  if (walk) {
    tour.walk = walk;
    tour.pace?.end();
    show(tour, walk, 0);
  } else if (stop !== undefined) halt(tour, stop);
  else if (wait !== undefined) waiting(route, wait);
  else {
    tour.asked = true;
    tour.modes.before = state.mode;
    tour.pace = lendPace(route.pace);
    const isSent = askForRun(route);
    tour.modes.own = state.mode;
    if (isSent) waiting(route, "Processing the prompt.");
    else proceed(tour);
  }
}

/** @param {Route} route @param {string} text */
function waiting(route, text) {
  drawCard({ route, at: null, word: null, title: "One moment", parts: [plain(text)], next: "" });
}

/** End the tour with a reason. @param {Tour} tour @param {string} text */
function halt(tour, text) {
  tour.over = true;
  turn += 1;
  point(() => ({ marks: [], keep: around(null) }));
  const { route } = tour;
  drawCard({
    route,
    at: null,
    word: null,
    title: `The ${route.kind} ends here`,
    parts: [plain(text)],
    next: "Close",
  });
}

/** React to changes of the page: the tour may start, resume or end. */
function attend() {
  if (!tour || tour.over) return;
  const { walk, at } = tour;
  if (!walk) proceed(tour);
  else if (!tour.route.steps[at].follows && !walk.shown) halt(tour, GONE);
  else if (tour.lost && ready()) show(tour, walk, at);
}

// ---- steps -----------------------------------------------------------------------------------

function next() {
  if (!tour) return;
  if (tour.over || isLast(tour)) endTour(!tour.over);
  else if (tour.walk) show(tour, tour.walk, tour.at + 1);
}

/** @param {Tour} tour */
const isLast = ({ at, route }) => at === route.steps.length - 1;

/** Go on by arrow key, which never closes the tour: one press too many should not. */
function onward() {
  if (tour && !isLast(tour) && !tour.over) next();
}

function back() {
  if (tour?.walk && !tour.over && tour.at > 0) show(tour, tour.walk, tour.at - 1);
}

/** @param {Tour} tour @param {Walk} walk @param {number} at */
async function show(tour, walk, at) {
  const { stage, route } = tour;
  const step = route.steps[at];
  const mine = (turn += 1);
  Object.assign(tour, { at, lost: false });
  const next = isLast(tour) ? "Done" : "Next";
  const card = { route, at, word: walk.word, title: step.title, next };
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
    drawCard({ ...card, parts: step.text(walk, found), exercise: step.exercise?.(walk, found) });
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

const KEYS = new Map([["Escape", () => endTour()], ["ArrowRight", onward], ["ArrowLeft", back]]);

/** @param {Element} target */
const isTyping = (target) => target instanceof HTMLInputElement;

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (!tour || isComposing(event) || document.querySelector("dialog[open]")) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = KEYS.get(event.key);
  const target = targetOf(event);
  const own = (cardHas(target) && !isTyping(target)) || target === document.body;
  if (!act || (event.key !== "Escape" && !own)) return;
  event.preventDefault();
  event.stopPropagation();
  act();
}
