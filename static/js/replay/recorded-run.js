// The recorded run that comes with the page: what a visitor watches where no model can run.

import { hasServer } from "../net/connection.js";
import { on, state } from "../state.js";
import { play } from "./playback-clock.js";

/** Its file, recorded by e2e/record_run.py. */
const FILE = "static/replays/smollm2.json.gz";

/** Can this page have no model at all? Else the model of its server may still come. */
export const hasNoModel = () => !hasServer && state.engine.state === "failed";

export const isRecordedRunShown = () => state.replay?.address === FILE;

/** Open it by its address, in place of the page's address; `isNew`: as one to come back from. */
export function openRecordedRun(isNew = true) {
  const hash = `#replay=${FILE}`;
  if (isNew) location.hash = hash;
  else location.replace(hash);
}

/** Play it whenever it was opened, and open it by itself where a visitor would see nothing else. */
export function setUpRecordedRun() {
  /** @type {OpenReplay | null} */
  let shown = null;
  on("replay", () => {
    const { replay } = state;
    if (replay === shown) return;
    shown = replay;
    if (isRecordedRunShown()) play();
  });
  let isOffered = false;
  on("connection", () => {
    if (!hasNoModel() || isOffered) return;
    isOffered = true;
    if (!state.replay && !state.turns.length && !location.hash.includes("=")) openRecordedRun(false);
  });
}
