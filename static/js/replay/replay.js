// Shows a replay instead of the conversation, and suspends the conversation meanwhile.

import { Playback } from "./playback.js";
import { releaseControls } from "../settings/bound-controls.js";
import { scales, useScales } from "../turns/metrics.js";
import { newStore } from "../interventions/intervention-store.js";
import { fromWire } from "../interventions/intervention-wire.js";
import { resumeRun } from "../turns/resume.js";
import { changed, liveState, setState, shownAnswer, state } from "../state.js";
import { goToEnd } from "../ui/following.js";
import { pin, showAnswer, view } from "../view.js";

/**
 * Fields of `state` that belong to the conversation.
 *
 * @type {Array<keyof State & keyof Suspended>}
 */
const SUSPENDED_FIELDS = [
  "turns", "active", "problem", "mode", "settings", "capture", "interventions", "hello", "counted",
];
/** Topics that change when a replay is shown or left. */
const TOPICS = [
  "hello", "connection", "turns", "tokens", "focus", "settings", "interventions", "metric", "size",
  "replay",
];

/**
 * Show a replay, the result of `open` in replay/file.js. `name`: of its file. `address`: how the page's
 * address says it, or "".
 *
 * @param {ReplayFile.Replay} replay
 * @param {string} name
 * @param {string} [address]
 */
export function show(replay, name, address = "") {
  releaseControls();
  const suspended = state.replay?.suspended ?? suspendLiveState();
  const playback = new Playback(replay);
  setState({
    replay: { playback, name, address, suspended, rerun: null },
    // Older recordings have less: what is drawn of it does without.
    hello: /** @type {ToPage.Hello} */ (playback.hello),
    problem: null,
    counted: null,
  });
  useScales();
  settleScales(playback.steps.map(({ event }) => event));
  seek(playback.steps.length);
  changed(...TOPICS);
}

/** Why no replay can be shown now, or "". */
export function whyNotOpenable() {
  const segment = liveState().active?.segment;
  return segment && !segment.accepted
    ? "A prompt was just sent. Open the replay once its answer has begun."
    : "";
}

function suspendLiveState() {
  const fields = SUSPENDED_FIELDS.map((name) => [name, state[name]]);
  const suspended = /** @type {Suspended} */ (Object.fromEntries(fields));
  const { answer, pinned, row } = view;
  return { ...suspended, scales: useScales(), view: { answer, pinned, row } };
}

/** Return to the conversation, which went on meanwhile. */
export function leave() {
  if (!state.replay) return;
  const { suspended } = state.replay;
  const { scales: liveScales, view: liveView, ...conversation } = suspended;
  setState({ replay: null, ...conversation });
  useScales(liveScales);
  settleScales(liveView?.answer?.segments.flatMap(({ events }) => events) ?? []);
  showAnswer(liveView?.answer ?? null);
  pin(liveView?.pinned ?? null, liveView?.row);
  if (state.hello && state.connection === "open") resumeRun();
  changed(...TOPICS);
}

/**
 * Set the scales by events, in their order. A playback does so before it begins, so that no column
 * changes its colour while it plays.
 *
 * @param {Array<RunEvent | null>} events
 */
function settleScales(events) {
  for (const event of events) {
    if (event?.type === "prefill") scales.settle(event.stats);
    if (event?.type === "token" && event.stats) scales.settle([event.stats]);
  }
}

/** Show the playback after `cursor` of its steps. @param {number} cursor */
export function seek(cursor) {
  if (!state.replay) return;
  state.replay.playback.seek(cursor);
  copyToState(state.replay.playback);
}

/** @param {number} n */
export function seekToken(n) {
  if (!state.replay) return;
  state.replay.playback.seekToken(n);
  copyToState(state.replay.playback);
}

/** Copy the playback's current step to the page's state. @param {Playback} playback */
function copyToState(playback) {
  const { answer } = playback.recording.answerVersion;
  if (!answer.segment) return;
  const { request, params, capture, interventions } = answer.segment;
  setState({
    turns: playback.turns,
    active: playback.writing ? answer : null,
    mode: playback.turns[playback.recording.answerVersion.turn].mode,
    settings: /** @type {Settings} */ ({ stop: [], ...request.params, ...params }),
    capture: params ? capture : request.capture,
    interventions: newStore(fromWire(interventions)),
  });
  showAnswer(shownAnswer(playback.turns.at(-1)));
  pin(null);
  goToEnd();
  changed("turns", "tokens", "focus", "settings", "interventions", "replay");
}
