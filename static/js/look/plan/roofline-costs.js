// What the steps of a run had to compute and to move, and what the device can: asked of the engine
// when the roofline is wanted, and kept while the same engine runs.

import { inspect } from "../inspect.js";
import { changed, state } from "../state.js";

let hello = null;
/** {bytes_per_s, flops_per_s}, {} where there is no GPU, null: not asked. */
let peaks = null;
/** "rows/context" → {flops, bytes}; null while it is asked for. */
let costs = new Map();
let asking = false;
export let fault = "";

/** Another engine is another device and other plans. */
function forget() {
  if (state.hello === hello) return;
  hello = state.hello;
  peaks = null;
  costs = new Map();
  fault = "";
}

/** The device's peaks, or null while they were not measured. */
export function peaksNow() {
  forget();
  return peaks;
}

/** Have the peaks measured: it takes half a second in which no run goes on. */
export async function measurePeaks() {
  if (asking) return;
  asking = true;
  changed("look");
  try {
    const { info } = await inspect({ kind: "peaks" });
    peaks = info;
    fault = "";
  } catch (error) {
    fault = error.message;
  }
  asking = false;
  changed("look");
}

export const isMeasuring = () => asking;

/**
 * The costs of steps [{rows, context}], in their order; null while some are still asked for. Those of
 * one row grow evenly with the context, so only the first and the last of them are asked for.
 */
export function costsOf(steps) {
  forget();
  const single = steps.filter(({ rows }) => rows === 1).map(({ context }) => context);
  const ends = single.length ? [Math.min(...single), Math.max(...single)] : [];
  const wanted = [
    ...ends.map((context) => [1, context]),
    ...steps.filter(({ rows }) => rows > 1).map(({ rows, context }) => [rows, context]),
  ];
  for (const [rows, context] of wanted) ask(rows, context);
  if (wanted.some(([rows, context]) => !costs.get(`${rows}/${context}`))) return null;
  return steps.map(({ rows, context }) =>
    rows > 1 ? costs.get(`${rows}/${context}`) : between(ends, context),
  );
}

function between([first, last], context) {
  const [a, b] = [costs.get(`1/${first}`), costs.get(`1/${last}`)];
  const share = last > first ? (context - first) / (last - first) : 0;
  const mixed = (name) => Math.round(a[name] + share * (b[name] - a[name]));
  return { flops: mixed("flops"), bytes: mixed("bytes") };
}

async function ask(rows, context) {
  const key = `${rows}/${context}`;
  if (costs.has(key)) return;
  const known = costs;
  known.set(key, null);
  try {
    const { info } = await inspect({ kind: "plan", n_rows: rows, context });
    if (info.flops) known.set(key, { flops: info.flops, bytes: info.n_bytes });
  } catch (error) {
    known.delete(key);
    fault = error.message;
  }
  changed("look");
}
