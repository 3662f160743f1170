// Times at which messages arrived and were drawn, by the browser's clock (ms, performance.now).

import { on } from "../state.js";

/** Events that arrived and are not drawn yet. @type {RunEvent[]} */
const waiting = [];

/**
 * Stamp an event with its arrival (`receivedAt`) and with the time the server forwarded it
 * (`passedAt`, server clock since it accepted the request). The next frame adds `drawnAt`.
 *
 * @param {RunEvent} event
 * @param {number} passedAt
 */
export function stampReceived(event, passedAt) {
  event.receivedAt = performance.now();
  event.passedAt = passedAt;
  waiting.push(event);
}

/** Set up after all other parts: an event counts as drawn when all of them have drawn. */
export function setUpMessageClock() {
  on("tokens", () => {
    const drawnAt = performance.now();
    for (const event of waiting.splice(0)) event.drawnAt = drawnAt;
  });
}
