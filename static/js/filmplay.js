// Playing a film: its steps at their recorded times, or faster or slower.

import { seek } from "./replay.js";
import { changed, state } from "./state.js";

/** Film time goes this much faster than the clock. */
let speed = 1;
/** The frame that is asked for; 0 while the film stands. */
let frame = 0;
/** When the last frame was (performance.now), and the film's time then; ms. */
let before = 0;
let time = 0;

export const playing = () => frame !== 0;

export function setSpeed(value) {
  speed = value;
}

/** Play on from where the film is; from its beginning when it is at its end. */
export function play() {
  const { film } = state.replay;
  if (playing()) return;
  if (film.atEnd) seek(1);
  time = film.now;
  before = performance.now();
  frame = requestAnimationFrame(turn);
  changed("replay");
}

export function pause() {
  if (!playing()) return;
  cancelAnimationFrame(frame);
  frame = 0;
  changed("replay");
}

/** The film was moved by hand: it plays on from there. */
export function settleTime() {
  time = state.replay.film.now;
}

function turn(now) {
  const { film } = state.replay;
  time += (now - before) * speed;
  before = now;
  const cursor = film.cursorAt(time);
  if (cursor !== film.cursor) seek(cursor);
  frame = film.atEnd ? 0 : requestAnimationFrame(turn);
  if (!frame) changed("replay");
}
