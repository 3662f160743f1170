// When messages came and when they were drawn, by this browser's clock (ms, performance.now).

import { on } from "./state.js";

/** Messages that came and wait for their frame. */
const waiting = [];

/**
 * Write into an event when it came (`receivedAt`), and when it passed the server (`passedAt`, by the
 * server's clock since it took the request). The frame that draws it adds `drawnAt`.
 */
export function stampReceived(event, passedAt) {
  event.receivedAt = performance.now();
  event.passedAt = passedAt;
  waiting.push(event);
}

/** Set up last: an event is drawn when all who draw have done so. */
export function setUpClock() {
  on("tokens", () => {
    const drawnAt = performance.now();
    for (const event of waiting.splice(0)) event.drawnAt = drawnAt;
  });
}
