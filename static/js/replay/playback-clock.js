// Clock of a playback: applies its steps at their recorded times, or faster or slower.

import { seek } from "./replay.js";
import { changed, state } from "../state.js";

/** Playback time per real time. */
let speed = 1;
/** The requested animation frame; 0 while paused. */
let frame = 0;
/** Time of the last frame (performance.now) and the playback's time then, ms. */
let before = 0;
let time = 0;

export const playing = () => frame !== 0;

/** @param {number} value */
export function setSpeed(value) {
  speed = value;
}

/** Play from the current step, or from the beginning if the playback is at its end. */
export function play() {
  if (!state.replay || playing()) return;
  const { playback } = state.replay;
  if (playback.atEnd) seek(1);
  time = playback.now;
  before = performance.now();
  frame = requestAnimationFrame(onFrame);
  changed("replay");
}

export function pause() {
  if (!playing()) return;
  cancelAnimationFrame(frame);
  frame = 0;
  changed("replay");
}

/** Continue from the current step after somebody sought to it. */
export function syncTime() {
  time = state.replay?.playback.now ?? 0;
}

/** @param {number} now */
function onFrame(now) {
  if (!state.replay) return;
  const { playback } = state.replay;
  time += (now - before) * speed;
  before = now;
  const cursor = playback.cursorAt(time);
  if (cursor !== playback.cursor) seek(cursor);
  frame = playback.atEnd ? 0 : requestAnimationFrame(onFrame);
  if (!frame) changed("replay");
}
