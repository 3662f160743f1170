// The guided walk: one token of the run on the page, followed in twelve steps from text to text.
//
// It sets up the page as a person could (stage.js), asks the engine as the instruments do (walk.js),
// and says what came of it on this run (steps.js). When it ends the page is as it was.

import { Missing } from "../look/context.js";
import { whenPrepared } from "../look.js";
import { on, ready } from "../state.js";
import { askForRun, beginning } from "./begin.js";
import { cardHas, closeCard, drawCard, focusCard, openCard, point, setUpCard } from "./card.js";
import { notAnswered } from "./missing.js";
import { Stage } from "./stage.js";
import { STEPS } from "./steps.js";
import { plain, say } from "./words.js";

/**
 * The walk under way, or null:
 *   opener  what had the keyboard
 *   asked   it sent a prompt of its own
 *   walk    what is followed (walk.js); null before it begins and after it stopped
 *   at      number of the step
 *   lost    the step's answer did not come because the line or the engine was away
 */
let tour = null;
/** Counts steps shown, so that an answer that comes late is dropped. */
let turn = 0;

setUpCard({ total: STEPS.length, onBack: back, onNext: next, onClose: endTour });
addEventListener("keydown", onKey, true);
on("hello line turns tokens", attend);

export function startTour() {
  if (tour) return focusCard();
  tour = { opener: document.activeElement, asked: false, walk: null, at: null, lost: false, over: false };
  tour.stage = new Stage();
  point(() => ({ marks: [], keep: around(null) }));
  proceed();
  return openCard();
}

/** Close the card and put the page back. */
function endTour() {
  const { opener, stage, walk } = tour;
  const within = cardHas(document.activeElement) || document.activeElement === document.body;
  tour = null;
  turn += 1;
  stage.end(walk?.shown ?? true);
  closeCard();
  if (within) (opener?.checkVisibility?.() ? opener : document.getElementById("turns")).focus({ preventScroll: true });
}

// ---- before the first step -------------------------------------------------------------------

/** Begin when there is something to walk through. */
function proceed() {
  const { walk, wait, stop, ask } = beginning(tour.asked);
  if (walk) {
    tour.walk = walk;
    return show(0);
  }
  if (stop) return halt(stop);
  if (!ask) return waiting(wait);
  tour.asked = true;
  return askForRun() ? waiting("The model reads the prompt.") : proceed();
}

function waiting(text) {
  drawCard({ at: null, word: null, title: "One moment", parts: [plain(text)], next: "" });
}

/** Nothing more can be shown: say why, and leave the rest to the person. */
function halt(text) {
  tour.over = true;
  turn += 1;
  point(() => ({ marks: [], keep: around(null) }));
  drawCard({
    at: null,
    word: null,
    title: "The walk stops here",
    parts: [plain(text)],
    next: "Close",
  });
}

/** Something changed on the page: it may let the walk begin, go on, or end it. */
function attend() {
  if (!tour || tour.over) return;
  if (!tour.walk) proceed();
  else if (!tour.walk.shown) halt("The run that it followed is not shown any more.");
  else if (tour.lost && ready()) show(tour.at);
}

// ---- steps -----------------------------------------------------------------------------------

function next() {
  if (!tour) return;
  if (tour.over || tour.at === STEPS.length - 1) endTour();
  else if (tour.walk) show(tour.at + 1);
}

/** By an arrow, which ends nothing: one press too many is no decision. */
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
  const card = { at, word: walk.word, title: step.title, next: at === STEPS.length - 1 ? "Done" : "Next" };
  stage.show(step);
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
    drawCard({ ...card, parts: step.say(walk, found) });
    point(() => ({ marks: step.marks(walk, found), keep: around(step.open) }));
  } catch (error) {
    if (mine === turn) failed(error, card);
  }
}

/** What had better stay visible beside what is ringed. */
const around = (open) =>
  [".top", ...(open ? ["#look"] : [".talk", ".layers"])].map((part) => [document.querySelector(part)]);

/** `error`: what the server answered, a Missing, or a mistake of the page. */
function failed(error, card) {
  tour.lost = error.code === "lost" || !ready();
  const parts = tour.lost
    ? say`The model cannot be reached now. This goes on by itself when it can.`
    : notAnswered(error);
  drawCard({ ...card, parts });
  if (error instanceof Error && !(error instanceof Missing)) reportError(error);
}

// ---- keys ------------------------------------------------------------------------------------

function onKey(event) {
  if (!tour || event.isComposing || document.querySelector("dialog[open]")) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { Escape: endTour, ArrowRight: onward, ArrowLeft: back }[event.key];
  const own = cardHas(event.target) || event.target === document.body;
  if (!act || (event.key !== "Escape" && !own)) return;
  event.preventDefault();
  event.stopPropagation();
  act();
}
