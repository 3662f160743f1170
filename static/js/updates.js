// Settings that act while the text is written: changes are sent to the running generation.

import { differences } from "./params.js";
import { send } from "./line.js";
import { live } from "./state.js";

/** While a slider is dragged, changes are sent this often at most; the last one always. */
const UPDATE_EVERY_MS = 100;

let updateTimer = 0;
let lastUpdate = 0;
/** What the generation was last asked to use: {id, …settings, capture}. */
let asked = null;

/** Let the settings of the page act on what is being written, now or as soon as is fair. */
export function pushSettings() {
  if (updateTimer || !live().active) return;
  const pause = Math.max(0, lastUpdate + UPDATE_EVERY_MS - performance.now());
  updateTimer = setTimeout(sendUpdate, pause);
}

/** On a new line: what was sent on the old one may not have arrived. */
export function settleSettings() {
  asked = null;
  pushSettings();
}

function sendUpdate() {
  updateTimer = 0;
  const { active, settings, capture } = live();
  const segment = active?.segment;
  if (!segment?.running) return;
  const wanted = { ...settings, capture };
  if (asked?.id !== segment.id)
    asked = {
      id: segment.id,
      ...(segment.params ?? segment.request.params),
      capture: segment.capture,
    };
  const params = Object.fromEntries(differences(asked, wanted).map(({ name, to }) => [name, to]));
  const message = { type: "update", id: segment.id, params };
  if (asked.capture !== wanted.capture) message.capture = wanted.capture;
  if (!Object.keys(params).length && message.capture === undefined) return;
  if (!send(message)) return;
  lastUpdate = performance.now();
  asked = { ...asked, ...params, capture: wanted.capture };
}
