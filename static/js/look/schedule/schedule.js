// Steps instrument: step by step, whose prefill and decode rows ran, what was drafted and
// accepted, and which runs waited or were preempted. Of several engines it shows one.
//
// The engine records its steps only while this is open.

import { clamp, el, setText, setVars } from "../../ui/dom.js";
import { count } from "../../ui/format.js";
import { inspect, latest } from "../../net/inspect.js";
import { changed } from "../../state.js";
import { EngineChoice, engineInWords, engineShown, followEngines, leaveEngines } from "../shared/engines.js";
import { runNames } from "../shared/run-names.js";
import { drawSteps, heightOf, layOut, PITCH } from "./draw.js";
import { buildReplicas, drawReplicas } from "./replicas.js";
import { describeStep, partsOf, readSteps, rowsOf } from "./steps.js";

/** Pause between questions (ms). */
const REST_MS = 300;
/** The same after one that failed. */
const FAULT_MS = 2000;
/** Most steps kept here. */
const MAX_STEPS = 2000;

/** @type {HTMLElement} */
let summary;
/** @type {HTMLElement} */
let field;
/** @type {HTMLCanvasElement} */
let canvas;
/** Steps so far, oldest first; run → name of the runs of this page that were seen. @type {EngineStep[]} */
let steps = [];
/** @type {Map<number, string>} */
let names = new Map();
/** What they are of: the model's `hello`, and the number of the engine. @type {ToPage.Hello | null} */
let hello = null;
/** @type {number | null} */
let engine = null;
/** @type {EngineChoice} */
let choice;
/** @type {Problem | null} */
let fault = null;
/** Number of the step of the keyboard cursor or under the pointer; null: the newest. @type {number | null} */
let focus = null;
let timer = 0;
let isOpen = false;
let asking = false;

/** @type {Instrument} */
export const schedule = {
  needs: "nothing",
  asks: true,

  setUp(root) {
    choice = new EngineChoice(root);
    summary = root.appendChild(el("p", "readout st-summary"));
    field = root.appendChild(el("div", "st-field"));
    Object.assign(field, { tabIndex: 0 });
    field.setAttribute("role", "slider");
    field.setAttribute("aria-label", "Step of the engine");
    canvas = field.appendChild(el("canvas"));
    canvas.setAttribute("aria-hidden", "true");
    root.append(buildKey());
    buildReplicas(root);
    field.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") lookAt(numberAt(event));
    });
    field.addEventListener("pointerleave", () => lookAt(null));
    field.addEventListener("click", (event) => lookAt(numberAt(event)));
    field.addEventListener("keydown", onKey);
    new ResizeObserver(() => changed("look")).observe(field);
  },

  show(context) {
    isOpen = true;
    followEngines();
    if (hello !== context.hello || engine !== engineShown()) forget(context.hello);
    if (!asking && !timer && engine !== null) ask();
    choice.draw();
    drawReplicas();
    if (fault) throw fault;
    draw();
    return `Counted by ${engineInWords()}. Runs of other clients are drawn as one row, without names.`;
  },

  hide() {
    isOpen = false;
    leaveEngines();
    clearTimeout(timer);
    timer = 0;
    focus = fault = null;
  },

  table() {
    const rows = rowsOf(steps, names);
    const lines = steps.flatMap((step) =>
      rows.map((row) => [step.number, step.ms, row.name, ...Object.values(partsOf(step, row))]),
    );
    const busy = lines.filter(([, , , ...numbers]) => numbers.some(Boolean));
    return { columns: COLUMNS, rows: busy };
  },
};

const COLUMNS = [
  { name: "step", format: count },
  "ms",
  "run",
  "prefill rows",
  "decode rows",
  "drafts",
  "accepted",
  "waiting",
  "preempted",
];

function buildKey() {
  const key = el("p", "key st-key");
  key.setAttribute("aria-hidden", "true");
  for (const [kind, words] of [
    ["prefill", "rows of a prompt"],
    ["decode", "a token"],
    ["accepted", "accepted draft"],
    ["rejected", "rejected draft"],
    ["waiting", "waits"],
    ["preempted", "preempted"],
  ]) {
    const one = key.appendChild(el("span", "", words));
    const swatch = el("i");
    swatch.dataset.kind = kind;
    one.prepend(swatch);
  }
  return key;
}

// ---- questions ---------------------------------------------------------------------------------

/** @param {ToPage.Hello} now */
function forget(now) {
  hello = now;
  engine = engineShown();
  clearTimeout(timer);
  timer = 0;
  steps = [];
  names = new Map();
  focus = fault = null;
}

async function ask() {
  asking = true;
  timer = 0;
  const [of, its] = [hello, engine];
  /** @type {FromPage.RecentSteps} */
  const question = { kind: "steps", after: steps.at(-1)?.number ?? 0 };
  const settle = await latest("steps", question, (one) => inspect(one, its ?? 0)).then(
    (answer) => () => take(answer),
    (error) => () => (fault = error),
  );
  asking = false;
  if (isOpen && of === hello && its === engine) settle();
  if (isOpen) timer = setTimeout(ask, fault ? FAULT_MS : REST_MS);
  changed("look");
}

/** @param {FrameAnswer} answer */
function take(answer) {
  for (const [run, name] of runNames(engine ?? 0)) names.set(run, name);
  steps = [...steps, ...readSteps(answer)].slice(-MAX_STEPS);
  fault = null;
}

// ---- drawing -----------------------------------------------------------------------------------

const left = () => parseFloat(getComputedStyle(field).getPropertyValue("--gutter"));

function draw() {
  const rows = rowsOf(steps, names);
  setVars(field, { "--st-high": `${heightOf(rows.length)}px` });
  const at = focus === null ? null : steps.findIndex(({ number }) => number === focus);
  drawSteps(canvas, { steps, rows, focus: at === -1 ? null : at, left: left() });
  const step = steps[at === null || at === -1 ? steps.length - 1 : at];
  const words = step ? describeStep(step, rows) : WAITING;
  setText(summary, words);
  field.setAttribute("aria-valuemin", String(steps[0]?.number ?? 0));
  field.setAttribute("aria-valuemax", String(steps.at(-1)?.number ?? 0));
  field.setAttribute("aria-valuenow", String(step?.number ?? 0));
  field.setAttribute("aria-valuetext", words);
}

const WAITING = "No step since this was opened. Each step of the engine will be a column here.";

// ---- pointer and keys --------------------------------------------------------------------------

/** @param {number | null} number */
function lookAt(number) {
  if (number === focus) return;
  focus = number;
  changed("look");
}

/** @param {MouseEvent} event */
function numberAt({ offsetX }) {
  const place = layOut(field.clientWidth, left(), steps.length);
  const i = Math.floor((offsetX - place.left) / PITCH);
  return i < 0 ? null : (steps[place.first + i]?.number ?? null);
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !steps.length) return;
  const last = steps.length - 1;
  const at = focus === null ? last : steps.findIndex(({ number }) => number === focus);
  /** @type {Record<string, number>} */
  const keys = {
    ArrowLeft: at - 1,
    ArrowRight: at + 1,
    PageUp: at - 10,
    PageDown: at + 10,
    Home: 0,
    End: last,
  };
  const to = keys[event.key];
  if (to === undefined) return;
  event.preventDefault();
  lookAt(steps[clamp(to, 0, last)].number);
}
