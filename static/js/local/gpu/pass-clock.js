// GPU times of a step: a timestamp before its first pass, and one after each pass.
//
// Browsers give timestamps between passes only, and many round them, so that a page cannot spy on
// others by the time they take.

const NS_PER_MS = 1e6;
/** Most timestamps of one query set on any device (WebGPU's limit). */
const MAX_QUERIES = 4096;
/** Pairs of timestamps from which the rounding is found. */
const PROBES = 8;
/** Clocks tick at least this finely, so what is coarser was rounded (ns). */
const FINEST_ROUNDING = 10_000;

/** Most passes that are timed at once. */
export const MAX_PASSES = MAX_QUERIES - 1;

export class PassClock {
  /**
   * A clock for at most `nPasses` passes, or null on a device without timestamps.
   *
   * @param {GPUDevice} device
   * @param {number} nPasses
   */
  static of(device, nPasses) {
    return device.features.has("timestamp-query") ? new PassClock(device, nPasses) : null;
  }

  /** @param {GPUDevice} device @param {number} nPasses */
  constructor(device, nPasses) {
    const count = nPasses + 1;
    const usage = GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC;
    this.querySet = device.createQuerySet({ label: "passes", type: "timestamp", count });
    this.resolved = device.createBuffer({ label: "timestamps", size: 8 * count, usage });
  }

  /** `timestampWrites` of pass `i`. @param {number} i @returns {GPUComputePassTimestampWrites} */
  writes(i) {
    const { querySet } = this;
    const end = { querySet, endOfPassWriteIndex: i + 1 };
    return i ? end : { ...end, beginningOfPassWriteIndex: 0 };
  }

  /**
   * Encode the copy of the times of `n` passes to byte `at` of a buffer.
   *
   * @param {GPUCommandEncoder} encoder
   * @param {number} n
   * @param {GPUBuffer} to
   * @param {number} at
   */
  copy(encoder, n, to, at) {
    encoder.resolveQuerySet(this.querySet, 0, n + 1, this.resolved, 0);
    encoder.copyBufferToBuffer(this.resolved, 0, to, at, bytesOfTimes(n));
  }

  destroy() {
    this.querySet.destroy();
    this.resolved.destroy();
  }
}

/** Bytes that the times of `n` passes take. @param {number} n */
export const bytesOfTimes = (n) => 8 * (n + 1);

/**
 * Return the milliseconds of each of `n` passes, from what `PassClock.copy` wrote at byte `at`. They
 * add up to the time from the first one's begin to the last one's end. Null: the clock was set back.
 *
 * @param {ArrayBuffer} data
 * @param {number} at
 * @param {number} n
 */
export function passTimes(data, at, n) {
  const ticks = new BigUint64Array(data, at, n + 1);
  const times = Array.from({ length: n }, (_, i) => Number(ticks[i + 1] - ticks[i]) / NS_PER_MS);
  return times.every((ms) => ms >= 0) ? times : null;
}

/**
 * Resolves to the milliseconds to which the browser rounds timestamps; 0: it does not, or there are
 * none.
 *
 * @param {GPUDevice} device
 */
export async function findRounding(device) {
  const clock = PassClock.of(device, 1);
  if (!clock) return 0;
  const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
  const readback = device.createBuffer({ size: bytesOfTimes(1), usage });
  /** @type {bigint[]} */
  const ticks = [];
  for (let i = 0; i < PROBES; i++) {
    const encoder = device.createCommandEncoder();
    encoder.beginComputePass({ timestampWrites: clock.writes(0) }).end();
    clock.copy(encoder, 1, readback, 0);
    device.queue.submit([encoder.finish()]);
    await readback.mapAsync(GPUMapMode.READ);
    ticks.push(...new BigUint64Array(readback.getMappedRange()));
    readback.unmap();
  }
  readback.destroy();
  clock.destroy();
  return roundingOf(ticks);
}

/**
 * Return the milliseconds of which all `ticks` (BigInt, ns) are multiples; 0: of none that matters.
 *
 * @param {bigint[]} ticks
 */
export function roundingOf(ticks) {
  const step = Number(ticks.reduce(greatestCommonDivisor, 0n));
  return step >= FINEST_ROUNDING ? step / NS_PER_MS : 0;
}

/** @type {(a: bigint, b: bigint) => bigint} */
const greatestCommonDivisor = (a, b) => (b ? greatestCommonDivisor(b, a % b) : a);
