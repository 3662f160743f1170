// What the looking costs: the time between tokens in this session while nothing is watched, while
// every layer is captured, and while an instrument asks the engine as well.

import { questions } from "./inspect.js";

const KEPT = 400;
const NEEDED = 12;
/** An instrument answered within so many tokens is asking still: one need not ask at each. */
const ASKS_WITHIN = 8;

const intervals = { off: [], on: [], asking: [] };
let before = null;
let asked = { questions: 0, tokensAgo: Infinity };

/**
 * Take the interval of a token. The first of a generation and those around a switch do not count,
 * nor does one that was captured but came without statistics because the page was behind.
 */
export function note(token) {
  const { asked: now, underWay } = questions();
  const quiet = now === asked.questions && !underWay;
  asked = { questions: now, tokensAgo: quiet ? asked.tokensAgo + 1 : 0 };
  const which = stateOf(token);
  const steady = before?.segment === token.segment && before.which === which && token.index > 1;
  before = { segment: token.segment, which };
  if (!steady || !which) return;
  intervals[which].push(token.times.interval);
  if (intervals[which].length > KEPT) intervals[which].shift();
}

function stateOf({ stats, segment }) {
  const asking = asked.tokensAgo < ASKS_WITHIN;
  if (stats) return asking ? "asking" : "on";
  return segment.capture || asking ? "" : "off";
}

/**
 * Tokens per second in each state (null: not seen often enough yet). Of all the time, not of the
 * middle token: what looking costs falls on some tokens, those that are timed or asked about.
 */
export function speeds() {
  const speed = (values) => {
    const all = values.reduce((sum, value) => sum + value, 0);
    return values.length >= NEEDED ? (1000 * values.length) / Math.max(1e-3, all) : null;
  };
  return { off: speed(intervals.off), on: speed(intervals.on), asking: speed(intervals.asking) };
}

/** Forget the measurements: another model or device. */
export function forget() {
  for (const values of Object.values(intervals)) values.length = 0;
  before = null;
}
