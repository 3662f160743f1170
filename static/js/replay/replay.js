// A replay in the place of the conversation: it comes, it goes, and what it covers is kept.

import { Film } from "./film.js";
import { scales, useScales } from "./metrics.js";
import { deskOf } from "./reachdesk.js";
import { settingOf } from "./reachsetting.js";
import { pickUp } from "./resume.js";
import { changed, live, shownAnswer, state } from "./state.js";
import { goToEnd } from "./transcript.js";
import { pin, showAnswer, view } from "./view.js";

/** What belongs to the conversation and is set aside: fields of `state`. */
const OWN = ["turns", "active", "problem", "mode", "settings", "capture", "reach", "hello", "counted"];

/** Show a replay (as `open` of replayfile.js gives it); `name`: of its file. */
export function show(replay, name) {
  const aside = state.replay?.aside ?? setAside();
  const film = new Film(replay);
  state.replay = { film, name, aside, again: null };
  Object.assign(state, { hello: film.hello, problem: null, counted: null });
  useScales();
  settleScales(film.steps.map(({ event }) => event));
  seek(film.steps.length);
  changed("hello", "line", "turns", "tokens", "focus", "settings", "reach", "metric", "size", "replay");
}

/** Why no replay can be shown now, or "". */
export function whyNotNow() {
  const segment = live().active?.segment;
  return segment && !segment.accepted
    ? "A prompt was sent just now. Open the replay when its answer has begun."
    : "";
}

function setAside() {
  const aside = Object.fromEntries(OWN.map((name) => [name, state[name]]));
  const { answer, pinned, row } = view;
  return { ...aside, scales: useScales(), view: { answer, pinned, row } };
}

/** Back to the conversation, as it is by now. */
export function leave() {
  if (!state.replay) return;
  const { aside } = state.replay;
  const { scales: own, view: seen, ...conversation } = aside;
  state.replay = null;
  Object.assign(state, conversation);
  useScales(own);
  settleScales(seen.answer?.segments.flatMap(({ events }) => events) ?? []);
  showAnswer(seen.answer);
  pin(seen.pinned, seen.row);
  if (state.hello && state.line === "open") pickUp();
  changed("hello", "line", "turns", "tokens", "focus", "settings", "reach", "metric", "size", "replay");
}

/**
 * Let events settle the scales, in their order: those of a film before it begins, so that no column
 * changes its colour while it plays.
 */
function settleScales(events) {
  for (const event of events) {
    if (event?.type === "prefill") scales.settle(event.stats);
    if (event?.type === "token" && event.stats) scales.settle([event.stats]);
  }
}

/** Show the film as it is after `cursor` of its steps. */
export function seek(cursor) {
  const { film } = state.replay;
  film.seek(cursor);
  mirror();
}

export function seekToken(n) {
  state.replay.film.seekToken(n);
  mirror();
}

/** Let the page be what the film shows now. */
function mirror() {
  const { film } = state.replay;
  const { answer } = film.reel.take;
  const { request, params, capture, reach } = answer.segment;
  Object.assign(state, {
    turns: film.turns,
    active: film.writing ? answer : null,
    mode: film.turns[film.reel.take.turn].mode,
    settings: { stop: [], ...request.params, ...params },
    capture: params ? capture : request.capture,
    reach: deskOf(settingOf(reach)),
  });
  showAnswer(shownAnswer(film.turns.at(-1)));
  pin(null);
  goToEnd();
  changed("turns", "tokens", "focus", "settings", "reach", "replay");
}
