// Hardware needs in words, and as a table.

import { bytes, count, duration, figure, percent } from "../../ui/format.js";

/** @typedef {Answers.Sizing} Sizing */
/** @typedef {Answers.DeviceBounds} DeviceBounds */
/** @typedef {Answers.Bound} Bound */

/** What limits a step. @type {Record<Bound["by"], string>} */
export const BOUND_BY = { bytes: "bandwidth", operations: "arithmetic", bus: "the bus" };

/** Operations, as bytes are written: "1.4 TFLOP". @param {number} n */
export const flops = (n) => bytes(n).replace(/B$/, "FLOP").replace("KFLOP", "kFLOP");

/** @param {number} seconds */
export const time = (seconds) =>
  seconds < 1e-3 ? `${figure(1e6 * seconds)} µs` : duration(1000 * seconds);

/** @param {Bound} bound */
const perSecond = ({ seconds }) => `${figure(1 / seconds)} tokens/s`;

/** The article's line: weights read for a token, times the tokens wanted. @param {Sizing} sizing */
export function multiplied(sizing) {
  const { active_parameters: active, parameters, rate, dtype, stored } = sizing;
  const read = stored.find((each) => each.dtype === dtype)?.token_bytes ?? NaN;
  const which = active < parameters ? "active parameters" : "parameters";
  return {
    product: `${short(active)} ${which} × ${figure(read / active)} bytes × ${count(rate)} tokens/s = ${bytes(read * rate)}/s`,
    each: `for weights stored as ${dtype}`,
  };
}

/** "70.6 billion" @param {number} n */
export function short(n) {
  if (n >= 1e9) return `${figure(n / 1e9)} billion`;
  return n >= 1e6 ? `${figure(n / 1e6)} million` : count(n);
}

/** @param {Sizing} sizing */
export function aboutMemory({ need, users, context }) {
  const overhead = need.total - need.weights - need.kv_cache - need.counts;
  const each = users > 1 ? `${count(users)} users` : "one user";
  return {
    parts: [
      { name: "weights", n: need.weights },
      { name: "keys and values", n: need.kv_cache },
      { name: "activations and buffers", n: overhead + need.counts },
    ],
    words: `${bytes(need.total)} for ${each} with ${count(context)} tokens each`,
  };
}

/** @param {Sizing} sizing */
export function kvRows({ kv }) {
  const here = kv.token_bytes[kv.dtype];
  const rows = [{ name: kv.kind, what: `${count(kv.n_kv_heads)} of ${count(kv.n_heads)} heads`, n: here, here: true }];
  if (kv.kind !== "MHA") rows.unshift({ name: "MHA", what: `${count(kv.n_heads)} heads`, n: kv.if_mha, here: false });
  if (kv.kind !== "MQA") rows.push({ name: "MQA", what: "one head", n: kv.if_mqa, here: false });
  return rows;
}

/** @param {Sizing} sizing */
export function kvWords({ kv, context, n_layers: nLayers }) {
  const text = `A text of ${count(context)} tokens takes ${bytes(kv.text_bytes)}`;
  if (!kv.n_windowed) return `${text}.`;
  const layers = `${count(kv.n_windowed)} of ${count(nLayers)} layers`;
  return `${text}; ${bytes(kv.unwindowed_bytes)} without the sliding window of ${count(kv.window ?? 0)} tokens in ${layers}.`;
}

/** How many of a device the model needs: "1", "2", or "–" if no number is enough. @param {DeviceBounds} bounds */
export const howMany = ({ fits, split }) => (fits ? "1" : split ? count(split.n_devices) : "–");

/**
 * How much of what a step reads fits into the cache of a device: if all of it does, memory is no limit.
 *
 * @param {number} moved bytes that a step reads and writes
 * @param {Answers.DeviceSpec} device
 */
export function aboutCache(moved, { cache_bytes: cache }) {
  if (!cache) return "The size of the device’s cache is not known.";
  if (moved <= cache)
    return `What a step reads fits into the device’s cache of ${bytes(cache)}: later steps may be faster than its memory allows.`;
  return `The device’s cache of ${bytes(cache)} holds ${percent(cache / moved)} % of what a step reads.`;
}

/** Where the figures of a device are from, and what can be done if the model does not fit. @param {DeviceBounds} bounds */
export function aboutDevice({ fits, split, offload, device: { name, source } }) {
  const from = `${name}: ${source}.`;
  if (fits) return from;
  const ways = [];
  if (split) ways.push(`split over ${count(split.n_devices)} of them it writes at most ${perSecond(split.decode)}`);
  if (offload)
    ways.push(`with ${bytes(offload.host_bytes)} of its weights in host memory at most ${perSecond(offload.decode)}`);
  return `${from} ${ways.length ? `The model does not fit: ${ways.join("; ")}.` : "The model is too large for it."}`;
}

/**
 * Levels of a step on a device, from the bus to the registers, with the time that each takes; null where
 * the rate is in no data sheet.
 *
 * @param {{flops: number, n_bytes: number, weight_bytes: number}} step
 * @param {Answers.DeviceSpec} device
 * @returns {{level: string, amount: string, rate: string, seconds: number | null}[]}
 */
export function ladder({ flops: operations, n_bytes: moved, weight_bytes: weights }, device) {
  const { bus_bytes_per_s: bus, bytes_per_s: wide, flops_per_s: rate } = device;
  const { cache_bytes: cache, cache_bytes_per_s: fast } = device;
  /** @type {ReturnType<typeof ladder>} */
  const rows = [
    { level: "memory", amount: bytes(moved), rate: `${bytes(wide)}/s`, seconds: moved / wide },
  ];
  if (bus)
    rows.unshift({
      level: "bus, if all weights were in host memory",
      amount: bytes(weights),
      rate: `${bytes(bus)}/s`,
      seconds: weights / bus,
    });
  if (cache)
    rows.push({
      level: `cache of ${bytes(cache)}${cache < moved ? ", if it held all" : ""}`,
      amount: bytes(moved),
      rate: fast ? `${bytes(fast)}/s` : "unknown",
      seconds: fast ? moved / fast : null,
    });
  if (rate)
    rows.push({
      level: "arithmetic, in registers",
      amount: flops(operations),
      rate: `${flops(rate)}/s`,
      seconds: operations / rate,
    });
  return rows;
}

/** All figures as rows: subject, name, value, unit. @param {Sizing} sizing @returns {unknown[][]} */
export function rowsOf(sizing) {
  const { parts, stored, kv, need, decode, prefill, devices } = sizing;
  return [
    ...parts.flatMap(({ name, parameters, active, n_bytes, token_bytes }) => [
      [name, "parameters", parameters, ""],
      [name, "parameters used by a token", active, ""],
      [name, `as ${sizing.dtype}`, n_bytes, "B"],
      [name, "read for a token", token_bytes, "B"],
    ]),
    ...stored.flatMap(({ dtype, n_bytes, token_bytes }) => [
      ["weights", `as ${dtype}`, n_bytes, "B"],
      ["weights", `read for a token as ${dtype}`, token_bytes, "B"],
    ]),
    ...Object.entries(kv.token_bytes).map(([name, n]) => ["KV cache of a token", name, n, "B"]),
    ["KV cache of a token", `${kv.dtype} with MHA`, kv.if_mha, "B"],
    ["KV cache of a token", `${kv.dtype} with MQA`, kv.if_mqa, "B"],
    ["KV cache of a text", kv.dtype, kv.text_bytes, "B"],
    ["KV cache of a text", "without sliding windows", kv.unwindowed_bytes, "B"],
    ...Object.entries(need).map(([name, n]) => ["memory", name.replace("_", " "), n, "B"]),
    ...stepRows("decode", decode),
    ...stepRows("prefill", prefill),
    ["wanted", "bandwidth", sizing.bytes_per_s, "B/s"],
    ["wanted", "arithmetic", sizing.flops_per_s, "FLOP/s"],
    ...devices.flatMap(deviceRows),
  ];
}

/** @param {string} name @param {Answers.CostOfStep} step */
const stepRows = (name, { flops: operations, weight_bytes, kv_bytes, intensity }) => [
  [name, "operations", operations, "FLOP"],
  [name, "weights", weight_bytes, "B"],
  [name, "keys and values", kv_bytes, "B"],
  [name, "intensity", intensity, "FLOP/B"],
];

/** @param {DeviceBounds} bounds */
function deviceRows({ device, users, first_token, decode, offload, split }) {
  const { name } = device;
  return [
    [name, "users that fit", users, ""],
    [name, "first token", first_token?.seconds ?? null, "s"],
    [name, "time per token", decode.seconds, "s"],
    ...(offload ? [[name, "time per token, offloaded", offload.decode.seconds, "s"]] : []),
    ...(split ? [[name, `time per token on ${split.n_devices}`, split.decode.seconds, "s"]] : []),
  ];
}
