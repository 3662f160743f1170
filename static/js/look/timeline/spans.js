// Where the time of a request went: spans on one axis, in ms from the moment the page sent it.
//
// Four clocks tell of a request: the browser's; the server's, which starts when it takes the
// request; the engine's, which starts when the engine does; and the GPU's, which only tells how
// long. Each is laid on the one before so that the fastest hand-over took no time: what a hand-over
// is seen to take is what it took longer than that one.

/** @typedef {{lane: string, part: string, from: number, to: number, index: number | null}} Span */

export const LANES = ["request", "GPU", "host", "line", "page"];

/**
 * Everything measured of a generation: `segment` and its `tokens`; `inFlight` steps are submitted
 * before the oldest is read.
 *
 *   spans    {lane, part, from, to, index}, of the token `index` of the segment or null
 *   steps    of each token: {at, interval, gpu, encode, wait, read, pipe, socket, page} in ms; null:
 *            not known
 *   end      where the last one ends
 *   live     was the browser's part measured? A reload forgets it: the axis then begins where the
 *            server took the request.
 */
export function measure(segment, tokens, inFlight = 1) {
  const written = writtenAt(tokens);
  const live = segment.sentAt !== null;
  const zeros = zerosOf(segment, tokens, written, live);
  const queue = segment.timings?.queue_ms ?? 0;
  const began = zeros.engine + queue;
  const spans = [...ofRequest(segment, written, zeros, queue), ...ofPrefill(segment, began)];
  const steps = tokens.map((token, i) => {
    const at = zeros.engine + written[i];
    const step = { at, ...token.times, ...ofPage(token, segment, zeros.server, at) };
    spans.push(...ofStep(step, i, roomFor(i, inFlight, written, zeros.engine)));
    return step;
  });
  const end = spans.reduce((most, { to }) => Math.max(most, to), 0);
  return { spans, steps, end, live };
}

/** When each token was read, in ms since the engine took the request. */
function writtenAt(tokens) {
  let at = 0;
  return tokens.map(({ times }) => {
    at += times.interval;
    return at;
  });
}

/** Where the server's and the engine's clock start on the axis. */
function zerosOf({ sentAt, chunks, timings }, tokens, written, live) {
  const queue = timings?.queue_ms ?? 0;
  const passed = [...tokens, ...chunks].map((message) => message.passedAt);
  const told = [...written, ...chunks.map(({ ms }) => queue + ms)];
  const received = [...tokens, ...chunks].map(({ receivedAt }) => receivedAt - sentAt);
  const server = live ? fastest(received, passed) : 0;
  return { server, engine: server + fastest(passed, told) };
}

/** The least that any `later` was after its `earlier`; clocks that started before count as now. */
function fastest(later, earlier) {
  if (!later.length) return 0;
  return Math.max(0, Math.min(...later.map((at, i) => at - earlier[i])));
}

function ofRequest({ chunks, preparedMs }, written, zeros, queue) {
  const spans = [];
  const add = (part, from, to) => {
    if (to > from) spans.push({ lane: "request", part, from, to, index: null });
  };
  const prepared = Math.min(zeros.server + (preparedMs ?? 0), zeros.engine);
  const began = zeros.engine + queue;
  const prompt = chunks.length ? began + chunks.at(-1).ms : began;
  add("sending", 0, zeros.server);
  add("template", zeros.server, prepared);
  add("to the engine", prepared, zeros.engine);
  add("queue", zeros.engine, began);
  add("prefill", began, prompt);
  if (written.length) {
    add("first sample", prompt, zeros.engine + written[0]);
    add("decode", zeros.engine + written[0], zeros.engine + written.at(-1));
  }
  return spans;
}

/** A chunk's GPU time is placed at its end, where the host had its result. */
function ofPrefill({ chunks }, began) {
  return chunks
    .filter(({ gpuMs }) => gpuMs !== null)
    .map(({ ms, gpuMs }) => ({
      lane: "GPU",
      part: "prefill",
      from: Math.max(began, began + ms - gpuMs),
      to: began + ms,
      index: null,
    }));
}

/** A step can be encoded once the token so many before it was read. */
const roomFor = (i, inFlight, written, zero) => (i >= inFlight ? zero + written[i - inFlight] : null);

function ofStep({ at, gpu, encode, wait, read, passed, received, drawn }, index, room) {
  const spans = [];
  const add = (lane, part, from, to) => spans.push({ lane, part, from, to, index });
  const arrived = at - read;
  if (gpu !== null) add("GPU", "decode", Math.max(0, arrived - gpu), arrived);
  if (room !== null) add("host", "encode", room, room + encode);
  add("host", "wait", Math.max(0, arrived - wait), arrived);
  add("host", "read", arrived, at);
  add("line", "pipe", at, passed);
  if (received !== null) add("line", "socket", passed, received);
  if (drawn !== null) add("page", "draw", received, drawn);
  return spans;
}

/** From the engine to the page and onto it: `passed`, `received`, `drawn` on the axis, and how long. */
function ofPage({ passedAt, receivedAt, drawnAt }, { sentAt }, server, at) {
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

/** The value that a share of all (0 … 1) do not exceed: nearest rank. NaN of none. */
export function quantile(sorted, share) {
  if (!sorted.length) return NaN;
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
}

/** Intervals between tokens (without the first, which is TTFT), sorted. */
export const intervalsOf = (tokens) =>
  tokens
    .slice(1)
    .map(({ times }) => times.interval)
    .sort((a, b) => a - b);

/**
 * `n` bins of equal width from 0 to a little over the 99th percentile; the last takes what is
 * beyond. {width, counts}
 */
export function histogram(sorted, n) {
  const width = (1.1 * quantile(sorted, 0.99)) / n || 1;
  const counts = Array(n).fill(0);
  for (const value of sorted) counts[Math.min(n - 1, Math.floor(value / width))] += 1;
  return { width, counts };
}
