// The bar of a replay: play, step, scrub, speed, and the way back.

import { all, byId, el, inputOf, one, setText, setVars } from "../ui/dom.js";
import { pause, play, playing, setSpeed, syncTime } from "./playback-clock.js";
import { count, tokenLabel } from "../ui/format.js";
import { leave, seekToken } from "./replay.js";
import { stopRerun, whyNotRerunnable, rerunReplay } from "./rerun.js";
import { on, state } from "../state.js";

const bar = byId("playback");
const slider = byId("playback-position");
const speed = byId("playback-speed");
/** Controls that need an engine; the status line disables its own. */
const DISABLED_IN_REPLAY = "#capture, .sampling :is(input, button)";
const OF_STATUS_LINE = "#stop, #again, #more, #new";
const WHY = "Not available in a replay. Leave the replay to continue writing.";
/** With more marks the rail would be a solid line. */
const MAX_MARKS = 200;

/** @type {OpenReplay["playback"] | null} */
let markedPlayback = null;

export function setUpPlaybackBar() {
  byId("playback-play").addEventListener("click", toggle);
  byId("playback-previous").addEventListener("click", () => stepBy(-1));
  byId("playback-next").addEventListener("click", () => stepBy(1));
  slider.addEventListener("input", () => moveTo(Number(slider.value)));
  speed.addEventListener("change", (event) => setSpeed(Number(inputOf(event).value)));
  byId("playback-rerun").addEventListener("click", () => (stopRerun() ? null : again()));
  byId("playback-leave").addEventListener("click", closeReplay);
  on("replay connection", draw);
}

/** Play or pause; false when there is no playback. */
export function toggle() {
  if (!state.replay || state.replay.rerun?.running) return false;
  if (playing()) pause();
  else play();
  return true;
}

/** @param {number} n */
function moveTo(n) {
  seekToken(n);
  syncTime();
}

/** @param {number} d */
const stepBy = (d) => {
  pause();
  moveTo((state.replay?.playback.position ?? 0) + d);
};

export function closeReplay() {
  pause();
  stopRerun();
  leave();
  byId("replay-open").focus();
}

function again() {
  pause();
  rerunReplay();
}

function draw() {
  const { replay } = state;
  const was = !bar.hidden;
  bar.hidden = !replay;
  document.body.toggleAttribute("data-replay", !!replay);
  if (was !== !!replay) disableControls(!!replay);
  if (!replay) {
    markedPlayback = null;
    return;
  }
  const { playback, rerun: writing } = replay;
  const busy = !!writing?.running;
  setText(byId("playback-name"), replay.name);
  drawPlay(busy);
  drawSlider(playback, busy);
  byId("playback-previous").disabled = busy || playback.position === 0;
  byId("playback-next").disabled = busy || playback.atEnd;
  drawAgain(writing, busy);
}

/** @param {boolean} busy */
function drawPlay(busy) {
  const button = byId("playback-play");
  button.disabled = busy;
  button.setAttribute("aria-label", playing() ? "Pause" : "Play");
  button.toggleAttribute("data-playing", playing());
}

/**
 * @param {OpenReplay["playback"]} playback
 * @param {boolean} busy
 */
function drawSlider(playback, busy) {
  const { position, length } = playback;
  Object.assign(slider, { max: String(length), value: String(position), disabled: busy });
  setVars(slider, { "--v": length ? position / length : 0 });
  const token = position ? /** @type {Token} */ (playback.steps[playback.tokens[position - 1] - 1].event) : null;
  const word = token ? `: “${tokenLabel(token.text, token.eos ? "end of text" : "·")}”` : "";
  slider.setAttribute("aria-valuetext", `token ${count(position)} of ${count(length)}${word}`);
  setText(byId("playback-count"), `${count(position)} / ${count(length)}`);
  if (markedPlayback !== playback) drawMarks(playback);
}

/**
 * Draw ticks on the rail where generations begin and where settings change.
 *
 * @param {OpenReplay["playback"]} playback
 */
function drawMarks(playback) {
  markedPlayback = playback;
  const marks = [];
  let before = 0;
  for (const { first, end, tokens } of playback.recordings) {
    if (before) marks.push(tick(before / playback.length, "begin"));
    for (const { event } of playback.steps.slice(first, end))
      if (event?.type === "updated" && event.index < tokens.length)
        marks.push(tick((before + event.index) / playback.length, "change"));
    before += tokens.length;
  }
  byId("playback-marks").replaceChildren(...marks.slice(0, MAX_MARKS));
}

/**
 * @param {number} at
 * @param {string} kind
 */
function tick(at, kind) {
  const node = setVars(el("i"), { "--at": at });
  node.dataset.kind = kind;
  return node;
}

/**
 * @param {Rerun | null} writing
 * @param {boolean} busy
 */
function drawAgain(writing, busy) {
  const button = byId("playback-rerun");
  const why = busy ? "" : whyNotRerunnable();
  setText(button, busy ? "Stop" : "Run again here");
  button.disabled = why !== "";
  button.title = why;
  const answerVersion = state.replay?.playback.recording.answerVersion;
  const shown = writing?.answerVersion === answerVersion ? writing : null;
  setText(byId("playback-status"), shown?.said || why);
  byId("playback-status").dataset.tone = shown?.tone ?? "";
}

/** Disable what needs an engine during a replay, and say why in the title. @param {boolean} on */
function disableControls(on) {
  for (const control of all(document, DISABLED_IN_REPLAY)) control.toggleAttribute("disabled", on);
  // The panel can scroll but then has nothing to focus, so it takes the focus itself.
  const panel = one(document, ".sampling");
  if (on) panel.tabIndex = 0;
  else panel.removeAttribute("tabindex");
  for (const control of all(document, `${DISABLED_IN_REPLAY}, ${OF_STATUS_LINE}`)) {
    if (on) control.title = WHY;
    else control.removeAttribute("title");
  }
}
