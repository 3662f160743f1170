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
/**
 * Segment → what this page has changed of its run, whether it could be sent or not.
 *
 * @type {WeakMap<Segment, NamedSettings>}
 */
const asked = new WeakMap();

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

/**
 * Send them again on a new connection if a change may not have arrived on the old one. Otherwise the run
 * keeps its own: another tab may have sent it, with other settings than those of this page.
 */
export function settleSettings() {
  const segment = steered(liveState())?.segment;
  if (!segment) return;
  const now = settingsOf(segment);
  if (!isChange(changesOf(now, { ...now, ...asked.get(segment) }))) return;
  sent = new WeakMap();
  pushSettings();
}

function sendUpdate() {
  updateTimer = 0;
  const { settings, capture, interventions } = liveState();
  const answer = steered(liveState());
  const segment = answer?.segment;
  if (!answer || !segment?.running) return;
  const before = sent.get(segment) ?? settingsOf(segment);
  const turn = liveState().turns.find(({ answers }) => answers?.includes(answer));
  /** @type {NamedSettings} */
  const wanted = { ...settings, ...(turn?.role === "model" && ownSettings(turn)), capture };
  wanted.max_tokens = Math.max(1, wanted.max_tokens - segment.alreadyCounted);
  // A token that was computed cannot be patched any more; new patches act in the next version.
  wanted.reach = { ...toWire(interventions.setting), patch: before.reach?.patch ?? [] };
  const changes = changesOf(before, wanted);
  if (!isChange(changes)) return;
  const { params, ...others } = changes;
  asked.set(segment, { ...asked.get(segment), ...params, ...others });
  if (!send({ type: "update", id: segment.id, ...changes })) return;
  lastUpdate = performance.now();
  sent.set(segment, { ...before, ...params, capture, reach: wanted.reach });
}

/**
 * The settings of a run, as far as they are known here.
 *
 * @param {Segment} segment
 * @returns {NamedSettings}
 */
const settingsOf = ({ params, request, capture, interventions }) => ({
  ...(params ?? request.params),
  capture,
  reach: interventions,
});

/** @param {ReturnType<typeof changesOf>} changes */
const isChange = ({ params, ...others }) =>
  Object.keys(params).length > 0 || Object.keys(others).length > 0;

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
