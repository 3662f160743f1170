// Pace of the texts that are written: the control beside Stop, and what it sends to the runs.
//
// The chosen pace is remembered. A pause is not: it is of the runs that are written now. Nor is a pace
// that the tour or an example of the start page has for a while.

import { byId, inputOf, setText } from "../ui/dom.js";
import { count } from "../ui/format.js";
import { send } from "../net/connection.js";
import { allFollowed } from "../net/followed-runs.js";
import { flushSettings } from "../turns/live-updates.js";
import { saveSettings } from "../turns/persist.js";
import { changed, on, setState, state } from "../state.js";

/** A press as long as this writes on until it ends. */
const LONG_PRESS_MS = 400;
/** Value of the control for writing token by token, as the pace 0 on the wire. */
const STEP = 0;

let held = 0;
let isRunning = false;
/** {pace} that acts in place of the chosen one, or null. @type {{pace: number | null} | null} */
let lent = null;

export function setUpPace() {
  byId("pace").addEventListener("change", (event) => choose(inputOf(event).value));
  byId("pause").addEventListener("click", togglePause);
  const step = byId("step");
  step.addEventListener("click", (event) => {
    // A long press ends with a click that is none; a key has no pointer.
    if (!endLongPress() || event.detail === 0) stepOnce();
  });
  step.addEventListener("pointerdown", beginLongPress);
  for (const name of ["pointerleave", "pointercancel"])
    step.addEventListener(name, () => endLongPress());
  on("turns tokens connection hello settings look", draw);
}

/** Put the control before another one, or back to its place: *Compare* covers that. */
export function movePace(place = byId("stop")) {
  const box = byId("pace-box");
  if (box.nextElementSibling !== place) place.before(box);
}

/** The pace that acts: the chosen one, or one that is lent. */
const paceNow = () => (lent ? lent.pace : state.pace);

/** The field of a `generate` message that says the pace. */
export const paceField = () => (paceNow() === null ? {} : { pace: paceNow() });

/**
 * Have this pace act on the runs that are shown and on the next ones, until a person chooses another.
 * Returns {change(pace), end()}: `end` brings the chosen pace back.
 *
 * @param {number | null} pace
 */
export function lendPace(pace) {
  const mine = { pace };
  /** @param {{pace: number | null} | null} next */
  const lend = (next) => {
    lent = next;
    sendPace(paceNow());
    changed("settings");
  };
  lend(mine);
  return {
    /** @param {number | null} other */
    change: (other) => lent === mine && lend(Object.assign(mine, { pace: other })),
    end: () => lent === mine && lend(null),
  };
}

/** Is the run of a segment paused? @param {Segment | null | undefined} segment */
export const isPaused = (segment) => !!segment?.running && segment.pace === STEP;

/** Pause the runs, or have them go on: at full speed if the chosen pace is by steps. */
export function togglePause() {
  const runs = pacedRuns();
  if (runs.some(isPaused)) sendPace(paceNow() === STEP ? null : paceNow());
  else sendPace(STEP);
  return runs.length > 0;
}

/** Have paused runs write a token; others are paused by it. */
export function stepOnce() {
  const runs = pacedRuns();
  flushSettings();
  for (const segment of runs) {
    if (isPaused(segment)) send({ type: "update", id: segment.id, steps: 1 });
    else send({ type: "update", id: segment.id, pace: STEP });
  }
  return runs.length > 0;
}

/** What the page says of the run of a paused answer, or "". @param {Answer | null} answer */
export function pauseOf(answer) {
  if (!answer || state.replay || !isPaused(answer.segment)) return "";
  return `Paused before token ${count(answer.tokens.length + 1)}`;
}

/** @param {string} value */
function choose(value) {
  lent = null;
  setState({ pace: value === "" ? null : Number(value) });
  saveSettings();
  sendPace(state.pace);
}

/** The running segments that the page shows: of the conversation and of a comparison. */
function pacedRuns() {
  if (state.replay) return [];
  const own = state.active?.segment;
  const columns = state.compared ? allFollowed().map(({ segment }) => segment) : [];
  return [own, ...columns].flatMap((segment) => (segment?.running ? [segment] : []));
}

/** @param {number | null} pace */
function sendPace(pace) {
  flushSettings();
  for (const { id } of pacedRuns()) send({ type: "update", id, pace });
}

function beginLongPress() {
  endLongPress();
  held = setTimeout(() => {
    isRunning = true;
    sendPace(null);
  }, LONG_PRESS_MS);
}

/** Return whether a long press ended; the run is paused again. */
function endLongPress() {
  clearTimeout(held);
  if (!isRunning) return false;
  isRunning = false;
  sendPace(STEP);
  return true;
}

function draw() {
  const runs = pacedRuns();
  const idle = !runs.length || state.connection !== "open";
  const paused = runs.some(isPaused);
  byId("pace").value = String(paceNow() ?? "");
  byId("pace").disabled = !!state.replay;
  byId("pace-box").toggleAttribute("data-paused", paused);
  byId("pause").disabled = byId("step").disabled = idle;
  setText(byId("pause-label"), paused ? "Go on" : "Pause");
  byId("pause-icon").setAttribute("href", paused ? "#i-play" : "#i-pause");
}

/**
 * What the next token of the shown answer will be drawn from, as long as it is paused; or null.
 *
 * @param {Answer | null} answer
 */
export function previewOf(answer) {
  const segment = answer?.segment;
  return isPaused(segment) && segment?.preview?.candidates.length ? segment.preview : null;
}
