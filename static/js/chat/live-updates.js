// Sends changed settings to the running generation.

import { send } from "../net/connection.js";
import { differences } from "../panels/sampling-settings.js";
import { normalize, sameInterventions } from "../interventions/interventions.js";
import { toWire } from "../interventions/intervention-wire.js";
import { liveState } from "../state.js";

/** Shortest time between two updates while a slider is dragged; the last value is always sent. */
const UPDATE_EVERY_MS = 100;

let updateTimer = 0;
let lastUpdate = 0;
/** Settings that were last sent to the generation: {id, …settings, capture, reach}. */
let sent = null;

/** Send the page's settings to the running generation, at most every UPDATE_EVERY_MS. */
export function pushSettings() {
  if (updateTimer || !liveState().active) return;
  const pause = Math.max(0, lastUpdate + UPDATE_EVERY_MS - performance.now());
  updateTimer = setTimeout(sendUpdate, pause);
}

/** Send them again on a new connection: the last update may not have arrived on the old one. */
export function settleSettings() {
  sent = null;
  pushSettings();
}

function sendUpdate() {
  updateTimer = 0;
  const { active, settings, capture, interventions } = liveState();
  const segment = active?.segment;
  if (!segment?.running) return;
  const wanted = { ...settings, capture };
  wanted.max_tokens = Math.max(1, settings.max_tokens - segment.alreadyCounted);
  const reach = toWire(interventions.setting);
  if (sent?.id !== segment.id)
    sent = {
      id: segment.id,
      ...(segment.params ?? segment.request.params),
      capture: segment.capture,
      reach: segment.interventions,
    };
  // A token that was computed cannot be patched any more; new patches act in the next version.
  wanted.reach = { ...reach, patch: sent.reach.patch ?? [] };
  const params = Object.fromEntries(differences(sent, wanted).map(({ name, to }) => [name, to]));
  const message = { type: "update", id: segment.id, params };
  if (sent.capture !== wanted.capture) message.capture = wanted.capture;
  if (!sameInterventions(sent.reach, wanted.reach)) message.reach = normalize(wanted.reach);
  if (!Object.keys(params).length && message.capture === undefined && !message.reach) return;
  if (!send(message)) return;
  lastUpdate = performance.now();
  sent = { ...sent, ...params, capture: wanted.capture, reach: wanted.reach };
}
