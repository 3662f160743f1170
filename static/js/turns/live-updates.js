// Sends changed settings to the running generation that the page's controls act on.

import { send } from "../net/connection.js";
import { differences } from "../settings/sampling-settings.js";
import { normalize, sameInterventions } from "../interventions/interventions.js";
import { toWire } from "../interventions/intervention-wire.js";
import { liveState, steered } from "../state.js";
import { ownSettings } from "./summary.js";

/** Shortest time between two updates while a slider is dragged; the last value is always sent. */
const UPDATE_EVERY_MS = 100;

let updateTimer = 0;
let lastUpdate = 0;

/**
 * Segment → settings that were last sent to its run: {…settings, capture, reach}.
 *
 * @type {WeakMap<Segment, NamedSettings>}
 */
let sent = new WeakMap();

/** Send the page's settings to the run that they act on, at most every UPDATE_EVERY_MS. */
export function pushSettings() {
  if (updateTimer || !steered(liveState())) return;
  const pause = Math.max(0, lastUpdate + UPDATE_EVERY_MS - performance.now());
  updateTimer = setTimeout(sendUpdate, pause);
}

/** Send now what waits to be sent, so that it acts before what is sent next. */
export function flushSettings() {
  if (!updateTimer) return;
  clearTimeout(updateTimer);
  sendUpdate();
}

/** Send them again on a new connection: the last update may not have arrived on the old one. */
export function settleSettings() {
  sent = new WeakMap();
  pushSettings();
}

function sendUpdate() {
  updateTimer = 0;
  const { settings, capture, interventions } = liveState();
  const answer = steered(liveState());
  const segment = answer?.segment;
  if (!answer || !segment?.running) return;
  /** @type {NamedSettings} */
  const before = sent.get(segment) ?? {
    ...(segment.params ?? segment.request.params),
    capture: segment.capture,
    reach: segment.interventions,
  };
  const turn = liveState().turns.find(({ answers }) => answers?.includes(answer));
  /** @type {NamedSettings} */
  const wanted = { ...settings, ...(turn?.role === "model" && ownSettings(turn)), capture };
  wanted.max_tokens = Math.max(1, wanted.max_tokens - segment.alreadyCounted);
  // A token that was computed cannot be patched any more; new patches act in the next version.
  wanted.reach = { ...toWire(interventions.setting), patch: before.reach?.patch ?? [] };
  const message = { type: /** @type {const} */ ("update"), id: segment.id, ...changesOf(before, wanted) };
  if (Object.keys(message).length === 3 && !Object.keys(message.params).length) return;
  if (!send(message)) return;
  lastUpdate = performance.now();
  sent.set(segment, { ...before, ...message.params, capture, reach: wanted.reach });
}

/**
 * Return what an update has to say: {params}, with `capture` and `reach` where they differ.
 *
 * @param {NamedSettings} before
 * @param {NamedSettings} wanted
 */
function changesOf(before, wanted) {
  const changes = differences(before, wanted).map(({ name, to }) => [name, to]);
  return {
    params: Object.fromEntries(changes),
    ...(before.capture !== wanted.capture && { capture: wanted.capture }),
    ...(!sameInterventions(before.reach, wanted.reach) && { reach: normalize(wanted.reach) }),
  };
}
