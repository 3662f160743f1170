// What the looking costs: time between tokens with capture and without, in this session.

const KEPT = 400;
const NEEDED = 12;

const intervals = { on: [], off: [] };
let before = null;

/**
 * Take the interval of a token. The first of a generation and those around a switch do not count,
 * nor does one that was captured but came without statistics because the page was behind.
 */
export function note(token) {
  const which = token.stats ? "on" : token.segment.capture ? "" : "off";
  const steady = before?.segment === token.segment && before.which === which && token.index > 1;
  before = { segment: token.segment, which };
  if (!steady || !which) return;
  intervals[which].push(token.times.interval);
  if (intervals[which].length > KEPT) intervals[which].shift();
}

function median(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** Tokens per second with capture and without (medians; null: not seen often enough yet). */
export function speeds() {
  const speed = (values) =>
    values.length >= NEEDED ? 1000 / Math.max(1e-3, median(values)) : null;
  return { on: speed(intervals.on), off: speed(intervals.off) };
}

/** Forget the measurements: another model or device. */
export function forget() {
  intervals.on.length = 0;
  intervals.off.length = 0;
  before = null;
}
