// Time between tokens in this session: without capture, with capture, and while an instrument
// queries the engine.

import { workOf } from "../turns/work.js";
import { questions } from "../net/inspect.js";

const MAX_INTERVALS = 400;
const MIN_INTERVALS = 12;
/** An instrument counts as active for this many tokens after a query. */
const ASKING_TOKENS = 8;

/** @typedef {"off" | "on" | "asking"} Which */

/** Times of tokens (ms). @type {Record<Which, number[]>} */
const intervals = { off: [], on: [], asking: [] };
/** The token before. @type {{segment: Segment, which: Which | ""} | null} */
let before = null;
let asked = { questions: 0, tokensAgo: Infinity };

/**
 * Record the interval of a token. Skipped are the first of a run, those around a switch, and
 * captured tokens without statistics (the page was behind).
 *
 * @param {ToPage.Token} token
 * @param {Segment} segment
 */
export function recordInterval(token, segment) {
  const { asked: now, pending } = questions();
  const quiet = now === asked.questions && !pending;
  asked = { questions: now, tokensAgo: quiet ? asked.tokensAgo + 1 : 0 };
  const which = stateOf(token, segment);
  const steady = before?.segment === segment && before.which === which && token.index > 1;
  before = { segment, which };
  if (!steady || !which) return;
  intervals[which].push(workOf(token.times));
  if (intervals[which].length > MAX_INTERVALS) intervals[which].shift();
}

/** @param {ToPage.Token} token @param {Segment} segment @returns {Which | ""} */
function stateOf({ stats }, segment) {
  const asking = asked.tokensAgo < ASKING_TOKENS;
  if (stats) return asking ? "asking" : "on";
  return segment.capture || asking ? "" : "off";
}

/**
 * Tokens per second in each state; null: too few samples. Uses the mean, not the median: measuring
 * slows only some tokens, those that are timed or queried.
 */
export function speeds() {
  const speed = (/** @type {number[]} */ values) => {
    const all = values.reduce((sum, value) => sum + value, 0);
    return values.length >= MIN_INTERVALS ? (1000 * values.length) / Math.max(1e-3, all) : null;
  };
  return { off: speed(intervals.off), on: speed(intervals.on), asking: speed(intervals.asking) };
}

/** Forget the measurements, for another model or device. */
export function forget() {
  for (const values of Object.values(intervals)) values.length = 0;
  before = null;
}
