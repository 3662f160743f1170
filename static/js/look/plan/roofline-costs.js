// Costs of a run's steps and peak rates of the device, queried when the roofline is shown and
// cached while the same engine runs.

import { inspect } from "../../net/inspect.js";
import { changed, state } from "../../state.js";

/** Rows of a step and the tokens before them. @typedef {{rows: number, context: number}} Step */

/** A larger share of a peak is no speed: the peak was measured wrong, or a cache held the data. */
const MOST_SHARE = 1.05;
/** @param {number} share */
export const isFault = (share) => share > MOST_SHARE;
export const PEAK_FAULT = "a fault of the measurement, or a cache";

/** @type {ToPage.Hello | null} */
let hello = null;
/**
 * {bytes_per_s, flops_per_s, read_bytes}, {} without a GPU, null: not measured.
 *
 * @type {KnownPeaks | null}
 */
let peaks = null;
/**
 * "rows/context" → {flops, bytes}; null while the query is pending, and after it failed: drawing
 * would send it again in every frame.
 *
 * @type {Map<string, StepCost | null>}
 */
let costs = new Map();
/** The last query; the next one waits for it, as the server answers only a few at a time. */
let queries = Promise.resolve();
let asking = false;
export let costsError = "";

/** Drop everything when the engine changed: device and plans differ. */
function forget() {
  if (state.hello === hello) return;
  hello = state.hello;
  peaks = hello?.device?.backend === "torch" ? {} : null; // it runs on no GPU: none to be measured
  costs = new Map();
  costsError = "";
}

/** The device's peak rates, or null if not measured. */
export function knownPeaks() {
  forget();
  return peaks;
}

/** Measure the peak rates, which blocks the engine for about a second. */
export async function measurePeaks() {
  if (asking) return;
  asking = true;
  changed("look");
  try {
    const { info } = await inspect({ kind: "peaks" });
    peaks = /** @type {Peaks} */ (info);
    costsError = "";
  } catch (error) {
    costsError = /** @type {Problem} */ (error).message;
  }
  asking = false;
  changed("look");
}

export const isMeasuring = () => asking;

/**
 * Return the costs of steps [{rows, context}] in order, or null while queries are pending. Costs of
 * single-row steps are linear in the context, so only the first and the last are queried.
 *
 * @param {Step[]} steps
 * @returns {StepCost[] | null}
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
  const known = steps.map(({ rows, context }) =>
    rows > 1 ? costs.get(`${rows}/${context}`) : between(ends, context),
  );
  const found = known.filter((cost) => !!cost);
  return found.length === known.length ? found : null;
}

/** @param {number[]} ends @param {number} context */
function between([first, last], context) {
  const [a, b] = [costs.get(`1/${first}`), costs.get(`1/${last}`)];
  if (!a || !b) return null;
  const share = last > first ? (context - first) / (last - first) : 0;
  /** @param {keyof StepCost} name */
  const mixed = (name) => Math.round(a[name] + share * (b[name] - a[name]));
  return { flops: mixed("flops"), bytes: mixed("bytes") };
}

/** @param {number} rows @param {number} context */
function ask(rows, context) {
  const key = `${rows}/${context}`;
  if (costs.has(key)) return;
  const known = costs;
  known.set(key, null);
  queries = queries.then(() => fetchCost(known, key, { n_rows: rows, context }));
}

/**
 * @param {Map<string, StepCost | null>} known
 * @param {string} key
 * @param {{n_rows: number, context: number}} step
 */
async function fetchCost(known, key, step) {
  if (known !== costs) return; // of an engine before
  try {
    const { info } = await inspect({ kind: "plan", ...step });
    if (info.flops) known.set(key, { flops: info.flops, bytes: info.n_bytes });
  } catch (error) {
    if (known === costs) costsError = /** @type {Problem} */ (error).message;
  }
  changed("look");
}
