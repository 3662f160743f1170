// GPU time of every dispatch of a step (gpu/inspection/plan_questions.py).

import { InvalidRequest } from "../shared/errors.js";
import { floats } from "./arrays.js";

/**
 * Throw InvalidRequest for a step that would be timed never or too often.
 *
 * @param {number} repeat
 * @param {number} most
 */
export function checkRepeat(repeat, most) {
  if (!(repeat >= 1 && repeat <= most))
    throw new InvalidRequest(`repeat is ${repeat}, expected 1 to ${most}`, "repeat");
}

/**
 * Answer a `Profile` of gpu/inspection/requests.py, one piece for each run of the step.
 *
 *   dispatches  as planReport lists them
 *   repeat      how often the step runs
 *   clockMs     to what the browser rounds times; 0: it does not
 *   measure     resolves to the milliseconds of each dispatch, or to null without timestamps
 *
 * @param {unknown[]} dispatches
 * @param {{repeat: number, clockMs: number}} asked
 * @param {() => Promise<number[] | null>} measure
 * @returns {Pieces<InspectionAnswer>}
 */
export async function* dispatchTimes(dispatches, { repeat, clockMs }, measure) {
  const info = { dispatches };
  /** @type {number[][]} */
  const runs = [];
  for (let i = 0; i < repeat; i++) {
    const times = await measure();
    if (!times) return { info, arrays: {} };
    runs.push(times);
    yield;
  }
  const typical = clockMs ? mean : median;
  const ms = dispatches.map((_, i) => typical(runs.map((times) => times[i])));
  return { info, arrays: { ms: floats(ms) } };
}

/**
 * Of rounded times only the mean of many is near what they were: most of them are 0 or one tick.
 *
 * @param {number[]} values
 */
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** @param {number[]} values */
function median(values) {
  const ordered = Float64Array.from(values).sort();
  const middle = ordered.length >> 1;
  return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
}
