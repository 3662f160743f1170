// Where the time of a request went: spans on one axis, in ms from the moment the page sent it.
//
// Three clocks tell of a request: the engine's, which starts when it takes the request, the GPU's,
// which only tells how long, and the browser's. A clock is laid on the browser's so that the fastest
// hand-over took no time; what a hand-over is seen to take is what it took longer than that one.

/** @typedef {{lane: string, part: string, from: number, to: number, index: number | null}} Span */

export const LANES = ["request", "GPU", "host", "socket", "page"];

/**
 * Everything measured of a generation: `segment` and its `tokens`; `inFlight` steps are submitted
 * before the oldest is read.
 *
 *   spans    {lane, part, from, to, index}, of the token `index` of the segment or null
 *   steps    of each token: {at, interval, gpu, encode, wait, read, socket, page}; null: not known
 *   end      where the last one ends
 *   live     was the browser's part measured? (A reload forgets it.)
 */
export function measure(segment, tokens, inFlight = 1) {
  const written = writtenAt(tokens);
  const live = segment.sentAt !== null;
  const zero = live ? engineZero(segment, tokens, written) : 0;
  const queue = segment.timings?.queue_ms ?? 0;
  const spans = [...ofRequest(segment, written, zero, queue), ...ofPrefill(segment, zero + queue)];
  const steps = tokens.map((token, i) => {
    const step = { at: zero + written[i], ...token.times, ...ofPage(token, segment, zero, written[i]) };
    spans.push(...ofStep(step, i, roomFor(i, inFlight, written, zero)));
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

/** When the engine took the request: as late as the token that came fastest allows. */
function engineZero({ sentAt, chunks, timings }, tokens, written) {
  const queue = timings?.queue_ms ?? 0;
  const delays = [
    ...tokens.map(({ receivedAt }, i) => receivedAt - sentAt - written[i]),
    ...chunks.map(({ receivedAt, ms }) => receivedAt - sentAt - queue - ms),
  ];
  return delays.length ? Math.max(0, Math.min(...delays)) : 0;
}

function ofRequest({ chunks }, written, zero, queue) {
  const spans = [];
  const add = (part, from, to) => {
    if (to > from) spans.push({ lane: "request", part, from, to, index: null });
  };
  const began = zero + queue;
  const prompt = chunks.length ? began + chunks.at(-1).ms : began;
  add("sending", 0, zero);
  add("queue", zero, began);
  add("prefill", began, prompt);
  if (written.length) {
    add("first sample", prompt, zero + written[0]);
    add("decode", zero + written[0], zero + written.at(-1));
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

function ofStep({ at, gpu, encode, wait, read, received, drawn }, index, room) {
  const spans = [];
  const add = (lane, part, from, to) => spans.push({ lane, part, from, to, index });
  const arrived = at - read;
  if (gpu !== null) add("GPU", "decode", Math.max(0, arrived - gpu), arrived);
  if (room !== null) add("host", "encode", room, room + encode);
  add("host", "wait", Math.max(0, arrived - wait), arrived);
  add("host", "read", arrived, at);
  if (received !== null) add("socket", "socket", at, Math.max(at, received));
  if (drawn !== null) add("page", "draw", received, drawn);
  return spans;
}

/** From the engine to the page and onto it: `received` and `drawn` on the axis, and how long. */
function ofPage({ receivedAt, drawnAt }, { sentAt }, zero, written) {
  if (sentAt === null) return { received: null, drawn: null, socket: null, page: null };
  const received = receivedAt - sentAt;
  const drawn = drawnAt === undefined ? null : drawnAt - sentAt;
  return {
    received,
    drawn,
    socket: Math.max(0, received - zero - written),
    page: drawn === null ? null : drawn - received,
  };
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
