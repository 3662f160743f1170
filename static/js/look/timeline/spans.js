// Time spans of a request on one axis, in ms since the page sent it.
//
// Four clocks are involved: the browser's; the server's, starting when it receives the request; the
// engine's, starting when the engine does; and the GPU's, which gives durations only. Each clock is
// aligned to the previous one so that the fastest message between them has zero delay: a delay
// shown is relative to that message.

import { workOf } from "../../turns/work.js";
import { quantile } from "../shared/quantile.js";


export const TRACKS = ["request", "GPU", "host", "network", "page"];

/**
 * Return everything measured of a run: `segment` and its `tokens`; `inFlight` steps are submitted
 * before the oldest is read back.
 *
 *   spans    {track, part, from, to, index}, `index` of the token in the segment or null
 *   steps    per token: {at, from, to, interval, paced, gpu, encode, wait, read, pipe, socket, page}
 *            in ms; null: unknown. It was computed between `from` and `to`, and written at `at`;
 *            `paced`: how long the run waited because of its pace, null if it did not
 *   end      end of the last span
 *   live     were the browser's times recorded? A reload loses them: the axis then starts when the
 *            server received the request.
 *
 * @param {Segment} segment
 * @param {Token[]} tokens
 * @param {number} [inFlight]
 */
export function measure(segment, tokens, inFlight = 1) {
  const written = writtenAt(tokens);
  const live = segment.sentAt !== null;
  const zeros = zerosOf(segment, tokens, written, live);
  const queue = segment.timings?.queue_ms ?? 0;
  const began = zeros.engine + queue;
  const steps = tokens.map((token, i) => {
    const at = zeros.engine + written[i];
    const times = { ...token.times, ...whenComputed(token, i, at) };
    return { at, ...times, ...ofPage(token, segment, zeros.server, at) };
  });
  const spans = [...ofRequest(segment, steps, zeros, began), ...ofPrefill(segment, began)];
  steps.forEach((step, i) => {
    // A run that waits has no step in flight.
    const encodeAt = i && step.paced !== null ? step.from : encodeStart(i, inFlight, written, zeros.engine);
    spans.push(...ofStep(step, i, encodeAt));
  });
  const end = spans.reduce((most, { to }) => Math.max(most, to), 0);
  return { spans, steps, end, live };
}

/** Time each token was read back, in ms since the engine received the request. @param {Token[]} tokens */
function writtenAt(tokens) {
  let at = 0;
  return tokens.map(({ times }) => {
    at += times.interval;
    return at;
  });
}

/**
 * Zero of the server's and the engine's clock on the axis.
 *
 * @param {Segment} segment
 * @param {Token[]} tokens
 * @param {number[]} written
 * @param {boolean} live
 */
function zerosOf({ sentAt, chunks, timings }, tokens, written, live) {
  const queue = timings?.queue_ms ?? 0;
  const passed = [...tokens, ...chunks].map((message) => message.passedAt ?? NaN);
  const engineTimes = [...written, ...chunks.map(({ ms }) => queue + ms)];
  const received = [...tokens, ...chunks].map(({ receivedAt = NaN }) => receivedAt - (sentAt ?? NaN));
  const server = live ? fastest(received, passed) : 0;
  return { server, engine: server + fastest(passed, engineTimes) };
}

/** Minimum delay from `earlier` to `later`; at least 0. @param {number[]} later @param {number[]} earlier */
function fastest(later, earlier) {
  if (!later.length) return 0;
  return Math.max(0, Math.min(...later.map((at, i) => at - earlier[i])));
}

/**
 * Return when a token was computed and how long its run waited because of its pace. A token that was
 * previewed was computed first and waited after that; others waited first. Before the first token only
 * a paused run waits, so its wait comes after the computation.
 *
 * @param {Token} token
 * @param {number} index
 * @param {number} at
 */
function whenComputed({ times, previewed }, index, at) {
  const interval = workOf(times);
  const paced = times.paced || null;
  const to = previewed || !index ? at - (paced ?? 0) : at;
  return { interval, paced, from: to - interval, to };
}

/**
 * @param {Segment} segment
 * @param {StepSpans[]} steps
 * @param {{server: number, engine: number}} zeros
 * @param {number} began
 */
function ofRequest({ chunks, preparedMs }, steps, zeros, began) {
  /** @type {Span[]} */
  const spans = [];
  /** @param {string} part @param {number} from @param {number} to @param {number | null} [index] */
  const add = (part, from, to, index = null) => {
    if (to > from) spans.push({ track: "request", part, from, to, index });
  };
  const prepared = Math.min(zeros.server + (preparedMs ?? 0), zeros.engine);
  const prompt = began + (chunks.at(-1)?.ms ?? 0);
  add("sending", 0, zeros.server);
  add("template", zeros.server, prepared);
  add("to the engine", prepared, zeros.engine);
  add("queue", zeros.engine, began);
  add("prefill", began, prompt);
  if (steps.every(({ paced }) => paced === null)) {
    const first = steps[0]?.at ?? NaN;
    add("first sample", prompt, first);
    add("decode", first, steps.at(-1)?.at ?? NaN);
    return spans;
  }
  steps.forEach(({ from, to, at, paced }, i) => {
    if (to === at) add("waiting", from - (paced ?? 0), from, i);
    add(i ? "decode" : "first sample", i ? from : prompt, to, i);
    add("waiting", to, at, i);
  });
  return spans;
}

/**
 * Place the GPU time of each chunk at its end, when the host had its result.
 *
 * @param {Segment} segment
 * @param {number} began
 */
function ofPrefill({ chunks }, began) {
  return chunks.flatMap(({ ms, gpuMs }) => {
    if (gpuMs === null) return [];
    const to = began + ms;
    return [{ track: "GPU", part: "prefill", from: Math.max(began, to - gpuMs), to, index: null }];
  });
}

/**
 * Earliest time a step can be encoded: when the token `inFlight` before it was read back.
 *
 * @param {number} i
 * @param {number} inFlight
 * @param {number[]} written
 * @param {number} zero
 */
const encodeStart = (i, inFlight, written, zero) =>
  i >= inFlight ? zero + written[i - inFlight] : null;

/** @param {StepSpans} step @param {number} index @param {number | null} encodeAt */
function ofStep(step, index, encodeAt) {
  const { at, to: ended, gpu, encode, wait, read, passed, received, drawn } = step;
  /** @type {Span[]} */
  const spans = [];
  /** @param {string} track @param {string} part @param {number} from @param {number} to */
  const add = (track, part, from, to) => spans.push({ track, part, from, to, index });
  const arrived = ended - read;
  if (gpu !== null) add("GPU", "decode", Math.max(0, arrived - gpu), arrived);
  if (encodeAt !== null) add("host", "encode", encodeAt, encodeAt + encode);
  add("host", "wait", Math.max(0, arrived - wait), arrived);
  add("host", "read", arrived, ended);
  add("network", "pipe", at, passed);
  if (received !== null) add("network", "socket", passed, received);
  if (drawn !== null && received !== null) add("page", "draw", received, drawn);
  return spans;
}

/**
 * Times from the engine to the page: `passed`, `received`, `drawn` on the axis, and durations.
 *
 * @param {Token} token
 * @param {Segment} segment
 * @param {number} server
 * @param {number} at
 */
function ofPage({ passedAt = NaN, receivedAt = NaN, drawnAt }, { sentAt }, server, at) {
  const passed = Math.max(at, server + passedAt);
  const pipe = passed - at;
  if (sentAt === null)
    return { passed, received: null, drawn: null, pipe, socket: null, page: null };
  const received = Math.max(passed, receivedAt - sentAt);
  const drawn = drawnAt === undefined ? null : drawnAt - sentAt;
  const page = drawn === null ? null : drawn - received;
  return { passed, received, drawn, pipe, socket: received - passed, page };
}

// ---- distribution ----------------------------------------------------------------------------

/** Intervals between tokens (without the first, which is TTFT), sorted. @param {Token[]} tokens */
export const intervalsOf = (tokens) =>
  tokens
    .slice(1)
    .map(({ times }) => workOf(times))
    .sort((a, b) => a - b);

/**
 * Return a histogram {width, counts} of `n` equal bins from 0 to 1.1 × the 99th percentile; the
 * last bin is open-ended.
 *
 * @param {number[]} sorted
 * @param {number} n
 */
export function histogram(sorted, n) {
  const width = (1.1 * quantile(sorted, 0.99)) / n || 1;
  const counts = Array(n).fill(0);
  for (const value of sorted) counts[Math.min(n - 1, Math.floor(value / width))] += 1;
  return { width, counts };
}
