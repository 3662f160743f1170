// Plan instrument: every dispatch of a step with its cost, GPU time and shader.

import { clamp, el, newButton, setText } from "../../ui/dom.js";
import { bytes, clockRounding, count, plural, whyNoTimes } from "../../ui/format.js";
import { drawSegmented, newSegmented } from "../../ui/segmented.js";
import { inspect } from "../../net/inspect.js";
import { changed } from "../../state.js";
import { Missing, positionOf } from "../shared/context.js";
import { amount, PlanDetail } from "./detail.js";
import { PlanGraph, short } from "./graph.js";
import { namesOfReads } from "./reads.js";

const PREFILL_ROWS = 64;
const REPEAT = 7;
/** @type {[size: string, label: string][]} */
const SIZES = [
  ["decode", "Decode"],
  ["prefill", "Prefill"],
];

/** @type {HTMLFieldSetElement} */
let choices;
/** @type {HTMLInputElement} */
let field;
/** @type {HTMLButtonElement} */
let measure;
/** @type {HTMLElement} */
let sums;
/** @type {PlanGraph} */
let graph;
/** @type {PlanDetail} */
let detail;
let size = "decode";
/**
 * Tokens before the step: as typed, else those of the run on opening; null until then.
 *
 * @type {number | null}
 */
let before = null;
/** The number taken from the run, to detect typing. @type {number | null} */
let taken = null;
let chosen = 0;
/**
 * The last query and answer: {key, plan, reads, times, clock}.
 *
 * @type {{key: string, plan: Answers.PlanReport, reads: import("./reads.js").NamesOf, times: number[] | null, clock: boolean}}
 */
let now;
let timing = false;

/** @type {Instrument} */
export const plan = {
  needs: "nothing",
  asks: true,

  setUp(root) {
    const left = root.appendChild(el("div", "column pl-left"));
    left.append(buildControls());
    graph = new PlanGraph(left, choose);
    detail = new PlanDetail(root);
  },

  async show(context) {
    const question = questionNow(context);
    const key = JSON.stringify([context.hello.model, context.hello.device.name, question]);
    if (now?.key !== key) await ask(key, question, context.hello.model.name);
    if (timing) await time(question);
    draw(context);
    return provenance(context.hello.device);
  },

  hide() {
    if (!field.value || Number(field.value) === taken) before = null;
  },

  table() {
    const { plan: listed, reads, times } = now;
    const total = times?.reduce((a, b) => a + b, 0) ?? NaN;
    return {
      columns: COLUMNS,
      rows: listed.dispatches.map((dispatch, i) => [
        i + 1,
        dispatch.label,
        reads(dispatch.label),
        dispatch.layer,
        dispatch.op,
        dispatch.kernel + 1,
        dispatch.grid.join(" × "),
        listed.kernels[dispatch.kernel].workgroup_size.join(" × "),
        dispatch.n_bytes,
        dispatch.flops,
        times ? 1000 * times[i] : null,
        times ? times[i] / total : null,
      ]),
    };
  },
};

/** @param {string} name */
const whole = (name) => ({ name, format: count });
const COLUMNS = [
  whole("dispatch"),
  "label",
  "reads",
  whole("layer"),
  "shader",
  whole("kernel"),
  "workgroups",
  "invocations each",
  whole("bytes"),
  whole("operations"),
  "GPU time, µs",
  "share of the time",
];

// ---- queries ---------------------------------------------------------------------------------

/**
 * Return the query for the chosen step: its rows, and the tokens before them.
 *
 * @param {Focus} context
 * @returns {FromPage.StepPlan}
 */
function questionNow(context) {
  const { context: most } = context.hello.limits;
  const rows = size === "decode" ? 1 : Math.min(PREFILL_ROWS, most);
  before ??= taken = tokensOf(context);
  return { kind: "plan", n_rows: rows, context: clamp(before, 0, most - rows) };
}

/** Number of tokens before the focused one, or 0. @param {Focus} context */
function tokensOf({ answer, token, index }) {
  const segment = token?.segment ?? answer?.promptSegment;
  return segment?.accepted && index !== null ? positionOf(segment, index) : 0;
}

/** @param {string} key @param {FromPage.StepPlan} question @param {string} model */
async function ask(key, question, model) {
  const { info } = await inspect(question);
  if (!info.dispatches) throw new Missing("This engine has no plan: PyTorch runs the model.");
  const reads = await namesOfReads(model);
  now = { key, plan: /** @type {Answers.PlanReport} */ (info), reads, times: null, clock: true };
  chosen = Math.min(chosen, info.dispatches.length - 1);
  graph.draw(info.dispatches);
}

/** @param {FromPage.StepPlan} question */
async function time({ n_rows, context }) {
  timing = false;
  measure.disabled = true;
  try {
    const answer = await inspect({ kind: "profile", n_rows, context, repeat: REPEAT });
    const { values } = answer.arrays.ms ?? {};
    now.times = values ? [...values] : null;
    now.clock = !!values;
  } finally {
    measure.disabled = false;
  }
}

/** @param {ToPage.DeviceInfo} device */
function provenance(device) {
  const { times, clock, plan: listed } = now;
  const { dispatches, recorded_rows: rows } = listed;
  const size = `${count(dispatches.length)} dispatches, recorded for ${plural(rows, "row")}`;
  const listing = `The engine’s recorded plan: ${size}. Bytes and operations by formula.`;
  const rounded = clockRounding(device);
  if (times && rounded) return `${listing} Times: means of ${REPEAT} runs, each ${rounded}.`;
  if (times) return `${listing} Times: medians of ${REPEAT} runs on this device.`;
  return clock ? listing : `${listing} Times are unknown: ${whyNoTimes(device, false)}.`;
}

// ---- controls --------------------------------------------------------------------------------

function buildControls() {
  const box = el("div", "controls pl-controls");
  const onChange = (/** @type {string} */ value) => again(() => (size = value));
  choices = newSegmented({ legend: "Step", name: "look-plan", options: SIZES, onChange });
  const after = el("label", "pl-after", "after");
  field = after.appendChild(el("input"));
  Object.assign(field, { type: "number", min: 0, id: "look-context", inputMode: "numeric" });
  field.addEventListener("change", () =>
    again(() => (before = field.value === "" ? null : Number(field.value))),
  );
  after.append("tokens");
  measure = newButton("Measure GPU times", () => again(() => (timing = true)));
  sums = el("span");
  const line = el("p", "pl-sums");
  line.append(sums, el("i", "time"), "time", el("i", "size"), "bytes");
  box.append(choices, after, measure, line);
  return box;
}

/** Redraw after a control changed. @param {() => void} change */
function again(change) {
  change();
  changed("look");
}

/** @param {number} number */
const choose = (number) => again(() => (chosen = number));

// ---- drawing ---------------------------------------------------------------------------------

/** @param {Focus} focus */
function draw({ row }) {
  const { plan: listed, reads, times } = now;
  drawSegmented(choices, size);
  if (document.activeElement !== field) field.value = String(listed.context);
  const total = times?.reduce((a, b) => a + b, 0) ?? null;
  const parts = [
    bytes(listed.n_bytes),
    `${amount(listed.flops)} operations`,
  ];
  if (total !== null) parts.unshift(short(total));
  setText(sums, parts.join(" · "));
  graph.measure(times);
  graph.mark(chosen, row?.layer ?? null);
  detail.draw(listed, chosen, reads(listed.dispatches[chosen].label), times ? times[chosen] : null, total);
}
