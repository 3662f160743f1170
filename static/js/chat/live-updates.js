// Settings that act while the text is written: changes are sent to the running generation.

import { send } from "./line.js";
import { differences } from "./params.js";
import { normal, same } from "./reach.js";
import { wireOf } from "./reachsetting.js";
import { live } from "./state.js";

/** While a slider is dragged, changes are sent this often at most; the last one always. */
const UPDATE_EVERY_MS = 100;

let updateTimer = 0;
let lastUpdate = 0;
/** What the generation was last asked to use: {id, …settings, capture, reach}. */
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
  const { active, settings, capture, reach } = live();
  const segment = active?.segment;
  if (!segment?.running) return;
  const wanted = { ...settings, capture };
  wanted.max_tokens = Math.max(1, settings.max_tokens - segment.counted);
  const inside = wireOf(reach.setting);
  if (asked?.id !== segment.id)
    asked = {
      id: segment.id,
      ...(segment.params ?? segment.request.params),
      capture: segment.capture,
      reach: segment.reach,
    };
  // A token that was computed cannot be patched any more: patches wait for the next version.
  wanted.reach = { ...inside, patch: asked.reach.patch ?? [] };
  const params = Object.fromEntries(differences(asked, wanted).map(({ name, to }) => [name, to]));
  const message = { type: "update", id: segment.id, params };
  if (asked.capture !== wanted.capture) message.capture = wanted.capture;
  if (!same(asked.reach, wanted.reach)) message.reach = normal(wanted.reach);
  if (!Object.keys(params).length && message.capture === undefined && !message.reach) return;
  if (!send(message)) return;
  lastUpdate = performance.now();
  asked = { ...asked, ...params, capture: wanted.capture, reach: wanted.reach };
}
