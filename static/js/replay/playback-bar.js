// The bar of a replay: play, step, scrub, speed, and the way back.

import { byId, el, setText, setVars } from "./dom.js";
import { pause, play, playing, setSpeed, settleTime } from "./filmplay.js";
import { count, tokenLabel } from "./format.js";
import { leave, seekToken } from "./replay.js";
import { setUpAgain, stopAgain, whyNotAgain, writeAgain } from "./replayagain.js";
import { on, state } from "./state.js";

const bar = byId("film");
const slider = byId("film-at");
/** Controls that would need an engine; the status line lets its own rest. */
const RESTING = "#capture, .sampling :is(input, button)";
const OF_STATUS_LINE = "#stop, #again, #more, #new";
const WHY = "A replay writes nothing. Leave it to write on.";
/** More marks than this would be a solid line. */
const MOST_MARKS = 200;

let marked = null;

export function setUpFilmBar() {
  byId("film-play").addEventListener("click", toggle);
  byId("film-back").addEventListener("click", () => stepBy(-1));
  byId("film-on").addEventListener("click", () => stepBy(1));
  slider.addEventListener("input", () => moveTo(Number(slider.value)));
  byId("film-speed").addEventListener("change", ({ target }) => setSpeed(Number(target.value)));
  byId("film-again").addEventListener("click", () => (stopAgain() ? null : again()));
  byId("film-leave").addEventListener("click", leaveFilm);
  setUpAgain();
  on("replay line", draw);
}

/** Play or pause; false when there is no film. */
export function toggle() {
  if (!state.replay || state.replay.again?.running) return false;
  if (playing()) pause();
  else play();
  return true;
}

function moveTo(n) {
  seekToken(n);
  settleTime();
}

const stepBy = (d) => {
  pause();
  moveTo(state.replay.film.position + d);
};

export function leaveFilm() {
  pause();
  stopAgain();
  leave();
  byId("replay-open").focus();
}

function again() {
  pause();
  writeAgain();
}

function draw() {
  const { replay } = state;
  const was = !bar.hidden;
  bar.hidden = !replay;
  document.body.toggleAttribute("data-replay", !!replay);
  if (was !== !!replay) rest(!!replay);
  if (!replay) {
    marked = null;
    return;
  }
  const { film, again: writing } = replay;
  const busy = !!writing?.running;
  setText(byId("film-name"), replay.name);
  drawPlay(busy);
  drawSlider(film, busy);
  byId("film-back").disabled = busy || film.position === 0;
  byId("film-on").disabled = busy || film.atEnd;
  drawAgain(writing, busy);
}

function drawPlay(busy) {
  const button = byId("film-play");
  button.disabled = busy;
  button.setAttribute("aria-label", playing() ? "Pause" : "Play");
  button.toggleAttribute("data-playing", playing());
}

function drawSlider(film, busy) {
  const { position, length } = film;
  Object.assign(slider, { max: String(length), value: String(position), disabled: busy });
  setVars(slider, { "--v": length ? position / length : 0 });
  const token = position ? film.steps[film.tokens[position - 1] - 1].event : null;
  const word = token ? `: “${tokenLabel(token.text, token.eos ? "end of text" : "·")}”` : "";
  slider.setAttribute("aria-valuetext", `token ${count(position)} of ${count(length)}${word}`);
  setText(byId("film-no"), `${count(position)} / ${count(length)}`);
  if (marked !== film) drawMarks(film);
}

/** Ticks on the rail: where a generation begins, and where settings changed. */
function drawMarks(film) {
  marked = film;
  const marks = [];
  let before = 0;
  for (const { first, end, tokens } of film.reels) {
    if (before) marks.push(tick(before / film.length, "begin"));
    for (const { event } of film.steps.slice(first, end))
      if (event?.type === "updated" && event.index < tokens.length)
        marks.push(tick((before + event.index) / film.length, "change"));
    before += tokens.length;
  }
  byId("film-marks").replaceChildren(...marks.slice(0, MOST_MARKS));
}

function tick(at, kind) {
  const node = setVars(el("i"), { "--at": at });
  node.dataset.kind = kind;
  return node;
}

function drawAgain(writing, busy) {
  const button = byId("film-again");
  const why = busy ? "" : whyNotAgain();
  setText(button, busy ? "Stop" : "Write it again here");
  button.disabled = why !== "";
  button.title = why;
  const told = writing?.take === state.replay.film.reel.take ? writing : null;
  setText(byId("film-said"), told?.said || why);
  byId("film-said").dataset.tone = told?.tone ?? "";
}

/** Let what needs an engine rest while a replay is on show, and say why. */
function rest(on) {
  for (const control of document.querySelectorAll(RESTING)) control.disabled = on;
  const panel = document.querySelector(".sampling"); // it may scroll, and has nothing to focus now
  if (on) panel.tabIndex = 0;
  else panel.removeAttribute("tabindex");
  for (const control of document.querySelectorAll(`${RESTING}, ${OF_STATUS_LINE}`)) {
    if (on) control.title = WHY;
    else control.removeAttribute("title");
  }
}
