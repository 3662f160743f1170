// Experiments of Lab: what each runs, and what its rows show.

import { inspect } from "../../net/inspect.js";
import { knownPeaks, measurePeaks } from "../plan/roofline-costs.js";
import { timedSteps } from "../plan/roofline.js";
import { count, duration, figure } from "../../ui/format.js";
import { kvBits, slidingWindow } from "./divergence.js";
import { middle } from "./middle.js";
import { drawStrips } from "./strips.js";

/** @typedef {import("../plan/roofline.js").TimedStep} TimedStep */

/** Tokens written after each prompt of `first`. */
const AFTER = 8;
/** After a prompt that takes so long, no longer ones are tried. */
const ENOUGH_MS = 5000;
const LENGTHS = [8, 16, 32, 64, 128, 256, 512, 1024, 2048];
/** Prompt and written tokens of `cache`. */
const GIVEN = 16;
const WRITTEN = 48;
/** The same of `phases`, and of each stream of `streams`. */
const PHASES = { prompt: 256, written: 32 };
const STREAM = { prompt: 16, written: 32 };
const STREAMS = [1, 2, 4, 8];
/** Tokens of the texts of `batching`, and how many are written at a time. */
const TEXTS = [48, 8, 16, 8, 8, 32, 8, 16];
const SLOTS = 4;

/** @param {LabRow} row @param {string} column */
const at = (row, column) => Number(row[column]);

/** @type {Experiment} */
const first = {
  name: "first",
  tab: "First token",
  title: "First token by prompt length",
  what: "Prompts of 8 tokens and more, none of them cached: time to the first token, and time for each token after it.",
  columns: ["prompt tokens", "first token, ms", "each after it, ms"],
  x: "prompt tokens",
  isLog: true,
  unit: "ms",
  lines: [
    { column: "first token, ms", colour: "lamp" },
    { column: "each after it, ms", colour: "data" },
  ],
  async run({ hello, prompt, run, add }) {
    for (const n of LENGTHS.filter((length) => length + AFTER <= hello.limits.context)) {
      const { timings } = await run(prompt(n), AFTER);
      add({
        "prompt tokens": n,
        "first token, ms": timings.ttft_ms - timings.queue_ms,
        "each after it, ms": timings.tpot_ms,
      });
      if (timings.ttft_ms > ENOUGH_MS) break;
    }
  },
  says(rows) {
    const [short, long] = [rows[0], rows.at(-1)];
    if (!short || !long || short === long) return "";
    /** @param {string} column */
    const grew = (column) => `${figure(at(long, column) / at(short, column))} times`;
    return (
      `${figure(at(long, "prompt tokens") / at(short, "prompt tokens"))} times as long a prompt takes ` +
      `${grew("first token, ms")} as long to the first token, and ${grew("each after it, ms")} as long for each one after it.`
    );
  },
};

/** @type {Experiment} */
const cache = {
  name: "cache",
  tab: "KV cache",
  title: "With and without the KV cache",
  what:
    "A text written with the cache, then each of its tokens again by reading everything before it. The first token " +
    "is changed every time, so that nothing is found in the cache.",
  columns: ["token", "with the cache, ms", "without, ms", "without, all so far, ms"],
  x: "token",
  isLog: false,
  unit: "ms",
  lines: [
    { column: "without, ms", colour: "lamp" },
    { column: "with the cache, ms", colour: "data" },
  ],
  async run({ prompt, run, add }) {
    const given = prompt(GIVEN);
    const cached = await run(given, WRITTEN);
    let sum = 0;
    for (let i = 1; i < WRITTEN; i += 1) {
      const [other] = prompt(1);
      const { timings } = await run([other, ...given.slice(1), ...cached.ids.slice(0, i)], 1);
      sum += timings.prompt_ms;
      add({
        token: i + 1,
        "with the cache, ms": cached.answer.tokens[i].times.interval,
        "without, ms": timings.prompt_ms,
        "without, all so far, ms": sum,
      });
    }
  },
  says(rows) {
    if (rows.length < 2) return "";
    const kept = rows.reduce((sum, row) => sum + at(row, "with the cache, ms"), 0);
    const again = at(rows[rows.length - 1], "without, all so far, ms");
    return (
      `${count(rows.length)} tokens take ${duration(kept)} with the cache and ${duration(again)} without, ` +
      `${figure(again / kept)} times as long. Without it, every token means reading all tokens before it, so the total grows with n².`
    );
  },
};

/** Return the cost of a step by its plan. @param {{rows: number, context: number}} step @returns {Promise<StepCost>} */
async function costOf({ rows, context }) {
  const { info } = await inspect({ kind: "plan", n_rows: rows, context });
  if (!info.flops) throw { code: "no_plan", message: "This engine does not report what its steps cost." };
  return { flops: info.flops, bytes: info.n_bytes };
}

/**
 * Return the cost of steps. For decoding, where it is linear in the context, the first and last step suffice.
 *
 * @param {TimedStep[]} steps
 * @returns {Promise<StepCost>}
 */
async function costOfAll(steps) {
  const isDecode = steps.every(({ rows }) => rows === 1);
  const some = isDecode ? [steps[0], steps[steps.length - 1]] : steps;
  /** @type {StepCost[]} */
  const costs = [];
  for (const step of some) costs.push(await costOf(step));
  const times = isDecode ? steps.length / 2 : 1;
  /** @param {keyof StepCost} name */
  const total = (name) => times * costs.reduce((sum, cost) => sum + cost[name], 0);
  return { flops: total("flops"), bytes: total("bytes") };
}

/**
 * Return the row of a phase, from its timed steps.
 *
 * @param {string} phase
 * @param {TimedStep[]} steps
 * @param {number} tokens
 */
async function phaseRow(phase, steps, tokens) {
  const { flops: operations, bytes: moved } = await costOfAll(steps);
  const ms = steps.reduce((sum, step) => sum + step.ms, 0);
  const peaks = knownPeaks();
  const ridge = peaks?.flops_per_s ? peaks.flops_per_s / peaks.bytes_per_s : null;
  const binds = ridge !== null && operations / moved < ridge ? "bandwidth" : "arithmetic";
  return {
    phase,
    tokens,
    "time, ms": ms,
    steps: steps.length,
    "tokens/s": (1000 * tokens) / ms,
    bytes: moved,
    operations,
    "operations per byte": operations / moved,
    "GB/s": moved / ms / 1e6,
    "GFLOP/s": operations / ms / 1e6,
    "bound by": ridge === null ? "" : binds,
  };
}

/** @type {Experiment} */
const phases = {
  name: "phases",
  tab: "Phases",
  title: "Prefill and decode",
  what: "Reading a prompt of 256 tokens and writing 32: bytes, operations and time of both phases, and what limits them.",
  columns: [
    "phase", "tokens", "steps", "time, ms", "tokens/s", "bytes", "operations", "operations per byte", "GB/s",
    "GFLOP/s", "bound by",
  ],
  x: "",
  isLog: false,
  unit: "",
  lines: [],
  async run({ hello, prompt, run, add }) {
    if (knownPeaks() === null) await measurePeaks(); // they decide what the limit is
    const n = Math.min(PHASES.prompt, Math.floor(hello.limits.context / 2));
    const { answer, segment } = await run(prompt(n), PHASES.written);
    const steps = timedSteps(segment, answer.tokens);
    if (!steps.length) throw { code: "untimed", message: "This device does not time its steps." };
    const [read, written] = [steps.filter(({ token }) => token === null), steps.filter(({ token }) => token !== null)];
    add(await phaseRow("prefill", read, n));
    add(await phaseRow("decode", written, written.length));
  },
  says(rows) {
    const [read, written] = rows;
    if (!read || !written) return "";
    return (
      `Prefill does ${figure(at(read, "operations per byte"))} operations per byte, decode ` +
      `${figure(at(written, "operations per byte"))}, because it reads the weights for one token at a time.`
    );
  },
};

/** @type {Experiment} */
const streams = {
  name: "streams",
  tab: "Streams",
  title: "Streams at once",
  what: "One, two, four and eight texts written at the same time: tokens per second of all together, and of each.",
  columns: ["streams", "tokens/s, all", "tokens/s, each", "at once"],
  x: "streams",
  isLog: false,
  unit: "tokens/s",
  lines: [
    { column: "tokens/s, all", colour: "lamp" },
    { column: "tokens/s, each", colour: "data" },
  ],
  async run({ hello, prompt, run, add }) {
    for (const n of STREAMS) {
      const runs = await Promise.all(
        Array.from({ length: n }, () => run(prompt(STREAM.prompt), STREAM.written)),
      );
      const from = Math.min(...runs.map(({ firstAt }) => firstAt));
      const to = Math.max(...runs.map(({ lastAt }) => lastAt));
      const each = runs.reduce((sum, { timings }) => sum + 1000 / timings.tpot_ms, 0) / n;
      add({
        streams: n,
        "tokens/s, all": (1000 * (n * STREAM.written - 1)) / (to - from),
        "tokens/s, each": each,
        "at once": Math.min(n, hello.limits.active),
      });
    }
  },
  says(rows) {
    const [one, most] = [rows[0], rows.at(-1)];
    if (!one || !most || one === most) return "";
    const waits = at(most, "at once") < at(most, "streams") ? `, ${count(at(most, "at once"))} at a time,` : "";
    return (
      `${count(at(most, "streams"))} streams${waits} write ${figure(at(most, "tokens/s, all") / at(one, "tokens/s, all"))} ` +
      "times as many tokens per second as one. A step reads the weights once for all of them, which helps most where " +
      "bandwidth is the limit."
    );
  },
};

/** @type {Experiment} */
const batching = {
  name: "batching",
  tab: "Batching",
  title: "Static and continuous batching",
  what:
    "Eight texts of different lengths, at most four at a time: first in batches that start together, then with a " +
    "new text as soon as one has ended. Hatched: the slot is idle.",
  columns: ["batching", "text", "tokens", "slot", "from, ms", "to, ms"],
  x: "batching",
  isLog: false,
  unit: "ms",
  lines: [],
  draw: drawStrips,
  async run({ hello, prompt, run, add }) {
    const slots = Math.min(SLOTS, hello.limits.active);
    /** @param {string} kind @param {number} began */
    const writer = (kind, began) => async (/** @type {number} */ text, /** @type {number} */ slot) => {
      const from = performance.now() - began;
      const { lastAt } = await run(prompt(STREAM.prompt), TEXTS[text]);
      add({ batching: kind, text: text + 1, tokens: TEXTS[text], slot: slot + 1, "from, ms": from, "to, ms": lastAt - began });
    };
    const inBatches = writer("static", performance.now());
    for (let first = 0; first < TEXTS.length; first += slots)
      await Promise.all(TEXTS.slice(first, first + slots).map((_, slot) => inBatches(first + slot, slot)));
    const atOnce = writer("continuous", performance.now());
    let next = 0;
    await Promise.all(
      Array.from({ length: slots }, async (_, slot) => {
        while (next < TEXTS.length) {
          next += 1;
          await atOnce(next - 1, slot);
        }
      }),
    );
  },
  says(rows) {
    /** @param {string} kind */
    const took = (kind) => Math.max(...rows.filter((row) => row.batching === kind).map((row) => at(row, "to, ms")));
    if (rows.length < 2 * TEXTS.length) return "";
    return (
      `The texts take ${duration(took("static"))} in static batches, each of which waits for its longest text, and ` +
      `${duration(took("continuous"))} with continuous batching.`
    );
  },
};

export const EXPERIMENTS = [first, cache, phases, streams, batching, kvBits, slidingWindow, middle];
