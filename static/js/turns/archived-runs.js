// Runs in the browser's storage, for those of which this tab has only the text.

import { retention } from "./retention.js";
import { scales } from "./metrics.js";

/** @typedef {Map<string, {segment: Segment, text: string}>} Archive */

/** @type {Promise<Archive>} */
let archive = Promise.resolve(new Map());

/**
 * `runs`: promise of a map from a run's id to {segment, text}: as it is stored, and its text.
 *
 * @param {Promise<Archive>} runs
 */
export function useArchive(runs) {
  archive = runs;
}

/**
 * Fill a segment of which only the text is here with its stored tokens; false without them.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 */
export const fillFromArchive = async (answer, segment) => fillFrom(await archive, answer, segment);

/**
 * The same with the runs of another conversation.
 *
 * @param {Archive} runs
 * @param {Answer} answer
 * @param {Segment} segment
 */
export function fillFrom(runs, answer, segment) {
  const kept = runs.get(segment.id);
  // Text that was written after the last save is worth more than older tokens.
  if (!kept?.segment.events.length || kept.text !== segment.textOnly) return false;
  const { events, sentAt, preparedMs } = kept.segment;
  Object.assign(segment, { seq: 0, events: [], sentAt, preparedMs });
  for (const event of events) answer.applyEvent(segment, segment.seq + 1, withoutPlace(event));
  if (segment.running) Object.assign(segment, { state: "done", reason: "cancelled" });
  countMeasurements(segment);
  return true;
}

/**
 * Return the event of another segment without what that segment added to it.
 *
 * @param {RunEvent & {segment?: Segment, place?: number, number?: number, previewed?: boolean}} event
 */
const withoutPlace = ({ segment: _s, place: _p, number: _n, previewed: _w, ...event }) => event;

/** Count the measurements of a run that came from storage. @param {Segment} segment */
export function countMeasurements(segment) {
  for (const event of segment.events) {
    retention.record(segment, event);
    if (event.type === "prefill") scales.settle(event.stats ?? []);
    if (event.type === "token" && event.stats) scales.settle([event.stats]);
  }
}
