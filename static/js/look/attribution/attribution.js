// Attribution instrument: how much each word of the prompt contributed to the focused token, to the whole
// answer or to an answer that the user types, measured by leaving the word out; and how much the order of the
// words did, measured by swapping them and by switching rotary positions off.

import { NOT_MEASURED } from "../../turns/answer.js";
import { tokenize } from "../../net/inspect.js";
import { spansUpTo } from "../../interventions/interventions.js";
import { changed } from "../../state.js";
import { el, newButton, setText } from "../../ui/dom.js";
import { percent, plural, probability, tokenLabel } from "../../ui/format.js";
import { newSegmented } from "../../ui/segmented.js";
import { Missing, sequenceOf } from "../shared/context.js";
import { LossText } from "../loss/text.js";
import { LikelyTable } from "./likely.js";
import { newList } from "./list.js";
import { Measurement } from "./measure.js";
import { partsOf, unitsOf } from "./units.js";

/** @typedef {import("./units.js").UnitKind} UnitKind */
/** @typedef {import("./units.js").Unit} Unit */
/** @typedef {"token" | "answer" | "typed"} TargetKind */
/** @typedef {import("./measure.js").Change} Change */
/** @typedef {import("./units.js").PromptPart} PromptPart */
/**
 * What is shown: the prompt, what is predicted (`what`: in words; `isToken`: one token), and its measurement.
 *
 * @typedef {{key: string, segment: Segment, parts: PromptPart[], measurement: Measurement, what: string,
 *   isToken: boolean}} Shown
 */

/** Measurements that are kept. */
const N_KEPT = 12;

/** @type {Map<string, Measurement>} */
const kept = new Map();
/** The tokenized request of a run. @type {WeakMap<Segment, Promise<ToPage.PromptPiece[] | null>>} */
const cuts = new WeakMap();
/** @type {TargetKind} */
let target = "token";
/** The answer that the user typed. */
let typed = "";
/** @type {Change} */
let change = "out";
/** @type {UnitKind} */
let unitKind = "words";
/** @type {Shown | null} */
let now = null;
/** Unit that is pointed at or selected, ROPE_OFF, or null. @type {number | null} */
let looked = null;
/** `looked` at what switching positions off does. */
const ROPE_OFF = -1;
let leaving = new AbortController();

/**
 * Elements.
 *
 * @type {{go: HTMLButtonElement, bar: HTMLProgressElement, say: HTMLElement, typed: HTMLInputElement,
 *   one: HTMLElement}}
 */
let at;
/** @type {ReturnType<typeof newList>} */
let list;
/** @type {LikelyTable} */
let likely;
/** @type {LossText} */
let text;

/** @type {Instrument} */
export const attribution = {
  needs: "token",
  asks: true,

  setUp(root) {
    root.append(buildSide(), buildText(), buildList());
  },

  async show(focus) {
    now = await shownFrom(focus);
    draw();
    const { measurement } = now;
    return measurement.nDone
      ? `The engine read ${plural(measurement.nDone + 1, "text")}: with the prompt as it is, and with each part of it changed.`
      : "Nothing is computed until you measure.";
  },

  hide: () => leaving.abort(),

  table: () => ({
    columns:
      change === "out"
        ? ["left out", "tokens", "log-probability with it", "without it", "difference"]
        : ["swapped with the next", "tokens", "log-probability before", "after", "difference"],
    rows: now ? rowsOf(now.measurement) : [],
  }),
};

/** @param {Measurement} measurement */
function rowsOf(measurement) {
  const { units, whole, readings, withoutRope } = measurement;
  /** @type {(string | number | null)[][]} */
  const rows = units.map((unit, i) => [
    unit.text,
    unit.to - unit.from,
    whole && whole.logprob,
    readings[i]?.logprob ?? null,
    measurement.effect(i),
  ]);
  if (whole && withoutRope && typeof withoutRope !== "string")
    rows.push([POSITIONS_OFF, null, whole.logprob, withoutRope.logprob, whole.logprob - withoutRope.logprob]);
  return rows;
}

const POSITIONS_OFF = "rotary positions off";

// ---- what is measured ---------------------------------------------------------------------------

/** @param {TokenFocus} focus @returns {Promise<Shown>} */
async function shownFrom(focus) {
  const { token, hello } = focus;
  if (token.prompt !== undefined)
    throw new Missing("This token is part of the prompt. Select one of the answer to see which words it depends on.");
  const { segment, ids, texts, position } = sequenceOf(focus);
  if (target === "answer" && segment.running) throw new Missing("The answer is still being written.");
  if (segment.edited) throw new Missing(NOT_MEASURED);
  if (spansUpTo(segment, ids.length).reached)
    throw new Missing("This text was written with interventions, whose positions would shift when words are left out.");
  const parts = partsOf(segment.prompt, await cutOf(segment));
  const word = token.eos ? "end of text" : tokenLabel(texts[position], "·");
  const predicted = await predictedFrom({ ids, position, first: segment.prompt.length, word });
  const { ids: asked } = predicted.target;
  const choice = [target, target === "typed" && typed, change, unitKind, asked.length];
  const key = [hello.model.name, hello.model.dtype, segment.id, ...choice].join(" ");
  const units = predicted.what ? unitsOf(parts, unitKind) : [];
  const measurement = kept.get(key) ?? new Measurement(predicted.target, units, change);
  return { key, segment, parts, measurement, what: predicted.what, isToken: asked.length === predicted.target.first + 1 };
}

/**
 * What is predicted: its ids after those of the prompt, and in words, "" if none was typed. `first`: the place
 * of the answer.
 *
 * @param {{ids: number[], position: number, first: number, word: string}} focused
 */
async function predictedFrom({ ids, position, first, word }) {
  if (target === "token") return { target: { ids: ids.slice(0, position + 1), first: position }, what: `“${word}”` };
  if (target === "answer") return { target: { ids, first }, what: "the answer" };
  if (!typed) return { target: { ids, first }, what: "" };
  const { tokens } = await tokenize({ text: typed });
  const own = { ids: [...ids.slice(0, first), ...tokens.map(({ id }) => id)], first };
  return { target: own, what: `“${typed.trim()}”` };
}

/** @param {Segment} segment */
function cutOf(segment) {
  const { messages, prompt, continue_final } = segment.originalRequest;
  /** @type {Countable} */
  const what = messages ? { messages, continue_final: !!continue_final } : { prompt };
  const cut =
    cuts.get(segment) ??
    tokenize(what).then(
      ({ tokens }) => tokens,
      () => null, // special tokens are recognised by their text
    );
  cuts.set(segment, cut);
  return cut;
}

/** Measure what is shown, or stop. */
async function toggle() {
  if (!now) return;
  const { key, measurement } = now;
  if (measurement.isRunning) return leaving.abort();
  leaving.abort();
  leaving = new AbortController();
  kept.delete(key);
  kept.set(key, measurement);
  for (const oldest of kept.keys()) if (kept.size > N_KEPT) kept.delete(oldest);
  await measurement.run(leaving.signal, () => changed("look"));
}

// ---- layout -------------------------------------------------------------------------------------

/**
 * @template {string} Value
 * @param {string} legend
 * @param {string} name
 * @param {[value: Value, label: string][]} options
 * @param {Value} value
 * @param {(value: Value) => void} choose
 */
const newChoice = (legend, name, options, value, choose) =>
  newSegmented({ legend, name, options, value, onChange: (chosen) => (choose(chosen), restart()) });

function buildSide() {
  const side = el("div", "column ab-side");
  const go = newButton("Measure", toggle, "send");
  const bar = el("progress");
  bar.setAttribute("aria-label", "Measured");
  const say = el("p", "ab-say");
  const one = el("p", "ab-one");
  one.setAttribute("role", "status");
  at = { go, bar, say, one, typed: newTyped() };
  side.append(
    newChoice("What", "ab-target", TARGETS, target, (value) => (target = value)),
    at.typed,
    newChoice("Change", "ab-change", CHANGES, change, (value) => (change = value)),
    newChoice("Part", "ab-unit", UNITS, unitKind, (value) => (unitKind = value)),
    say,
    go,
    bar,
  );
  return side;
}

/** @type {[TargetKind, string][]} */
const TARGETS = [
  ["token", "This token"],
  ["answer", "Whole answer"],
  ["typed", "Typed"],
];
/** @type {[Change, string][]} */
const CHANGES = [
  ["out", "Left out"],
  ["swap", "Swapped with the next"],
];
/** @type {[UnitKind, string][]} */
const UNITS = [
  ["words", "Words"],
  ["tokens", "Tokens"],
  ["messages", "Messages"],
];

function newTyped() {
  const input = el("input", "ab-typed");
  Object.assign(input, { type: "text", placeholder: "An answer, such as Paris", maxLength: 400 });
  input.setAttribute("aria-label", "Answer to measure");
  input.addEventListener("change", () => {
    typed = input.value.trimEnd();
    restart();
  });
  return input;
}

/** Before another choice is measured, what is measured stops. */
function restart() {
  leaving.abort();
  looked = null;
  changed("look");
}

function buildText() {
  const box = el("div", "ls-read");
  const words = box.appendChild(el("p", "ls-text"));
  words.setAttribute("role", "group");
  words.setAttribute("aria-label", "Prompt, shaded by the effect of its parts");
  const look = (/** @type {number | null} */ i) => {
    looked = i === null ? null : unitAt(i);
    drawLooked();
  };
  text = new LossText(words, look, look);
  return box;
}

function buildList() {
  const box = el("div", "ab-list");
  likely = new LikelyTable();
  list = newList((i) => {
    looked = i;
    drawLooked();
  });
  box.append(at.one, likely.box, list.box);
  return box;
}

// ---- drawing ------------------------------------------------------------------------------------

/** Index of the unit that a prompt token belongs to; null: none. @param {number} i */
function unitAt(i) {
  const found = now?.measurement.units.findIndex(({ from, to }) => from <= i && i < to) ?? -1;
  return found < 0 ? null : found;
}

function draw() {
  at.typed.hidden = target !== "typed";
  if (!now) return;
  const { measurement, parts, segment } = now;
  const { units, nDone, isRunning, isComplete } = measurement;
  const effects = units.map((_, i) => measurement.effect(i));
  text.draw(
    parts.map(({ text: own, special }, i) => {
      const unit = unitAt(i);
      const effect = unit === null ? null : effects[unit];
      const known = effect === null ? null : Math.max(0, effect);
      return { id: segment.prompt[i].id, text: own, special, loss: known, ...NOTHING };
    }),
  );
  setText(at.go, isRunning ? "Stop" : nDone && !isComplete ? "Continue" : "Measure");
  at.go.hidden = isComplete;
  Object.assign(at.bar, { max: Math.max(1, units.length), value: nDone, hidden: !isRunning });
  setText(at.say, sayOf(now));
  list.draw(listed(measurement), change);
  drawLooked();
}

/** What was measured, for the list. @param {Measurement} measurement */
function listed(measurement) {
  const { units, whole, withoutRope } = measurement;
  const known = units.flatMap(({ text: own }, i) => {
    const effect = measurement.effect(i);
    return effect === null ? [] : [{ i, text: own, effect }];
  });
  if (whole && withoutRope && typeof withoutRope !== "string")
    known.push({ i: ROPE_OFF, text: POSITIONS_OFF, effect: whole.logprob - withoutRope.logprob });
  return known;
}

const NOTHING = { rank: null, bits: null, top: null, nBytes: null, nCharacters: null };

/** @param {Shown} shown */
function sayOf({ measurement, what, isToken }) {
  const { units, nDone, whole, isRunning } = measurement;
  if (!what) return "Type an answer of your own, and see how likely the model finds it.";
  if (measurement.problem) return measurement.problem;
  if (!whole || !nDone) {
    if (isRunning) return "Reading the whole prompt …";
    const changed =
      change === "out"
        ? `without each of the ${plural(units.length, "part")} of the prompt`
        : `with each two of the ${plural(units.length, "part")} of the prompt swapped, and without rotary positions`;
    return `How likely would ${what} be ${changed}? The engine reads the text ${plural(units.length + 1, "time")}.`;
  }
  const start = isToken ? `p ${probability(Math.exp(whole.logprob))}` : `log-probability ${short(whole.logprob)}`;
  return `With the whole prompt, ${what} has ${start}. Measured: ${nDone} of ${plural(units.length, "part")}.`;
}

/** @param {number} nats */
const short = (nats) => nats.toFixed(2).replace("-", "−");

/** Draw what the unit that is looked at changes, or else the one that changes most. */
function drawLooked() {
  if (!now) return;
  const { measurement, what, isToken } = now;
  const { units, whole, readings, withoutRope } = measurement;
  const effects = units.map((_, unit) => measurement.effect(unit) ?? -Infinity);
  const i = looked ?? (measurement.nDone ? effects.indexOf(Math.max(...effects)) : -1);
  const isRopeOff = looked === ROPE_OFF || (looked === null && change === "swap");
  const reading = isRopeOff ? withoutRope : readings[i];
  text.mark(isRopeOff ? -1 : (units[i]?.from ?? -1));
  likely.draw(whole, reading && typeof reading !== "string" ? reading : null);
  if (typeof reading === "string") return setText(at.one, reading);
  if (!whole || !reading) return setText(at.one, "");
  const [before, after] = isToken
    ? [`${percent(Math.exp(whole.logprob))} %`, `${percent(Math.exp(reading.logprob))} %`]
    : [`log-probability ${short(whole.logprob)}`, short(reading.logprob)];
  const name = units[i]?.text.trim();
  const how = isRopeOff
    ? "With rotary positions switched off"
    : change === "out"
      ? `Without “${name}”`
      : `With “${units[i + 1].text.trim()}” before “${name}”`;
  return setText(at.one, `${how}, ${what} goes from ${before} to ${after}.`);
}
