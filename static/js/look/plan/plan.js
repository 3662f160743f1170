// What a step runs on the device: every dispatch, what it costs, how long it takes, and its shader.

import { clamp, el, setText } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { inspect } from "../inspect.js";
import { changed } from "../state.js";
import { Missing, sequenceOf } from "./context.js";
import { amount, PlanDetail } from "./plandetail.js";
import { PlanGraph, short } from "./plangraph.js";

const PREFILL_ROWS = 64;
const REPEAT = 7;
const SIZES = [
  ["decode", "A token"],
  ["prefill", "A prompt"],
];

let choices = null;
let field = null;
let measure = null;
let sums = null;
let graph = null;
let detail = null;
let size = "decode";
/** Tokens before the step: as typed, else those of the run when this was opened; null until then. */
let before = null;
/** What was taken from the run, to know whether something else was typed since. */
let taken = null;
let chosen = 0;
/** What was asked and answered last: {key, plan, times, clock}. */
let now = null;
let timing = false;

export const plan = {
  needs: "nothing",
  asks: true,

  setUp(root) {
    const left = root.appendChild(el("div", "pl-left"));
    left.append(buildControls());
    graph = new PlanGraph(left, choose);
    detail = new PlanDetail(root);
  },

  async show(context) {
    const question = questionNow(context);
    const key = JSON.stringify([context.hello.model, context.hello.device.name, question]);
    if (now?.key !== key) await ask(key, question);
    if (timing) await time(question);
    draw(context);
    return provenance();
  },

  hide() {
    if (!field.value || Number(field.value) === taken) before = null;
  },

  table() {
    const { plan: listed, times } = now;
    const total = times?.reduce((a, b) => a + b, 0);
    return {
      columns: COLUMNS,
      rows: listed.dispatches.map((dispatch, i) => [
        i + 1,
        dispatch.label,
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

const whole = (name) => ({ name, format: count });
const COLUMNS = [
  whole("dispatch"),
  "label",
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

// ---- asking ----------------------------------------------------------------------------------

/** The step that is asked about: rows, and tokens before them. */
function questionNow(context) {
  const { context: most } = context.hello.limits;
  const rows = size === "decode" ? 1 : Math.min(PREFILL_ROWS, most);
  before ??= taken = tokensOf(context);
  return { kind: "plan", n_rows: rows, context: clamp(before, 0, most - rows) };
}

/** Tokens before the focused one, else none. */
function tokensOf(context) {
  if (!context.token) return 0;
  try {
    return sequenceOf(context).position;
  } catch (error) {
    if (error instanceof Missing) return 0;
    throw error;
  }
}

async function ask(key, question) {
  const { info } = await inspect(question);
  if (!info.dispatches) throw new Missing("This engine has no plan: PyTorch runs the model.");
  now = { key, plan: info, times: null, clock: true };
  chosen = Math.min(chosen, info.dispatches.length - 1);
  graph.draw(info.dispatches);
}

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

function provenance() {
  const { times, clock, plan: listed } = now;
  const recorded = `${count(listed.dispatches.length)} dispatches, recorded for ${plural(listed.recorded_rows, "row")}`;
  const listing = `The plan that the engine replays: ${recorded}. Bytes and operations by formula.`;
  if (times) return `${listing} Times: medians of ${REPEAT} runs on this device.`;
  return clock ? listing : `${listing} This device has no clock, so times are not known.`;
}

// ---- controls --------------------------------------------------------------------------------

function buildControls() {
  const box = el("div", "pl-controls");
  choices = el("fieldset", "seg");
  choices.append(el("legend", "vh", "Which step"));
  for (const [value, text] of SIZES) {
    const choice = el("label", "", text);
    const input = el("input");
    Object.assign(input, { type: "radio", name: "look-plan", value });
    choice.prepend(input);
    choices.append(choice);
  }
  choices.addEventListener("change", ({ target }) => again(() => (size = target.value)));
  const after = el("label", "pl-after", "after");
  field = after.appendChild(el("input"));
  Object.assign(field, { type: "number", min: 0, id: "look-context", inputMode: "numeric" });
  field.addEventListener("change", () =>
    again(() => (before = field.value === "" ? null : Number(field.value))),
  );
  after.append("tokens");
  measure = el("button", "text", "Measure GPU times");
  measure.type = "button";
  measure.addEventListener("click", () => again(() => (timing = true)));
  sums = el("p", "pl-sums");
  sums.append(el("span"), el("i", "time"), "time", el("i", "size"), "bytes");
  box.append(choices, after, measure, sums);
  return box;
}

/** After a control changed: show again. */
function again(change) {
  change();
  changed("look");
}

const choose = (number) => again(() => (chosen = number));

// ---- drawing ---------------------------------------------------------------------------------

function draw({ row }) {
  const { plan: listed, times } = now;
  for (const input of choices.querySelectorAll("input")) input.checked = input.value === size;
  if (document.activeElement !== field) field.value = listed.context;
  const total = times?.reduce((a, b) => a + b, 0) ?? null;
  const parts = [
    bytes(listed.n_bytes),
    `${amount(listed.flops)} operations`,
  ];
  if (total !== null) parts.unshift(short(total));
  setText(sums.firstChild, parts.join(" · "));
  graph.measure(times);
  graph.mark(chosen, row?.layer ?? null);
  detail.draw(listed, chosen, times ? times[chosen] : null, total);
}
