// Attribution instrument: how much each word of the prompt contributed to the focused token, or to the
// whole answer, measured by leaving the word out.

import { NOT_MEASURED } from "../../turns/answer.js";
import { tokenize } from "../../net/inspect.js";
import { spansUpTo } from "../../interventions/interventions.js";
import { changed } from "../../state.js";
import { el, newButton, setText } from "../../ui/dom.js";
import { percent, plural, probability, tokenLabel } from "../../ui/format.js";
import { newSegmented } from "../../ui/segmented.js";
import { Missing, sequenceOf } from "../shared/context.js";
import { shareBar } from "../shared/table.js";
import { LossText } from "../loss/text.js";
import { Measurement } from "./measure.js";
import { partsOf, unitsOf } from "./units.js";

/** @typedef {import("./units.js").UnitKind} UnitKind */
/** @typedef {import("./units.js").Unit} Unit */
/** @typedef {"token" | "answer"} TargetKind */
/** @typedef {import("./units.js").PromptPart} PromptPart */
/**
 * What is shown: the prompt, what is predicted (`kind`; `word`: the focused token), and its measurement.
 *
 * @typedef {{key: string, segment: Segment, parts: PromptPart[], measurement: Measurement, word: string,
 *   kind: TargetKind}} Shown
 */

/** Units in the list. */
const N_LISTED = 12;
/** Measurements that are kept. */
const N_KEPT = 12;

/** @type {Map<string, Measurement>} */
const kept = new Map();
/** The tokenized request of a run. @type {WeakMap<Segment, Promise<ToPage.PromptPiece[] | null>>} */
const cuts = new WeakMap();
/** @type {TargetKind} */
let target = "token";
/** @type {UnitKind} */
let unitKind = "words";
/** @type {Shown | null} */
let now = null;
/** Unit that is pointed at or selected, or null. @type {number | null} */
let looked = null;
let leaving = new AbortController();

/**
 * Elements.
 *
 * @type {{go: HTMLButtonElement, bar: HTMLProgressElement, say: HTMLElement, list: HTMLElement, one: HTMLElement}}
 */
let at;
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
      ? `The engine read ${plural(measurement.nDone + 1, "text")}: with the whole prompt, and without each part of it.`
      : "Nothing is computed until you measure.";
  },

  hide: () => leaving.abort(),

  table: () => ({
    columns: ["left out", "tokens", "log-probability with it", "without it", "difference"],
    rows: now ? now.measurement.units.map((unit, i) => rowOf(unit, i, /** @type {Shown} */ (now).measurement)) : [],
  }),
};

/** @param {Unit} unit @param {number} i @param {Measurement} measurement */
const rowOf = (unit, i, measurement) => [
  unit.text,
  unit.to - unit.from,
  measurement.whole,
  measurement.left[i],
  measurement.effect(i),
];

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
  const { length: first } = segment.prompt;
  const what = target === "token" ? { ids: ids.slice(0, position + 1), first: position } : { ids, first };
  const key = [hello.model.name, hello.model.dtype, segment.id, target, unitKind, what.ids.length].join(" ");
  const measurement = kept.get(key) ?? new Measurement(what, unitsOf(parts, unitKind));
  const word = token.eos ? "end of text" : tokenLabel(texts[position], "·");
  return { key, segment, parts, measurement, word, kind: target };
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

function buildSide() {
  const side = el("div", "column ab-side");
  const go = newButton("Measure", toggle, "send");
  const bar = el("progress");
  bar.setAttribute("aria-label", "Measured");
  const say = el("p", "ab-say");
  const one = el("p", "ab-one");
  one.setAttribute("role", "status");
  const list = el("ol");
  at = { go, bar, say, one, list };
  side.append(
    newSegmented({
      legend: "What",
      name: "ab-target",
      options: [
        ["token", "This token"],
        ["answer", "Whole answer"],
      ],
      value: target,
      onChange(value) {
        target = value;
        restart();
      },
    }),
    newSegmented({
      legend: "Left out",
      name: "ab-unit",
      options: [
        ["words", "Words"],
        ["tokens", "Tokens"],
        ["messages", "Messages"],
      ],
      value: unitKind,
      onChange(value) {
        unitKind = value;
        restart();
      },
    }),
    say,
    go,
    bar,
  );
  return side;
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
  box.append(at.one, el("h3", "", "Change of log-probability without it, in nats"), at.list);
  return box;
}

// ---- drawing ------------------------------------------------------------------------------------

/** Index of the unit that a prompt token belongs to; null: none. @param {number} i */
function unitAt(i) {
  const found = now?.measurement.units.findIndex(({ from, to }) => from <= i && i < to) ?? -1;
  return found < 0 ? null : found;
}

function draw() {
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
  drawList(effects);
  drawLooked();
}

const NOTHING = { rank: null, bits: null, top: null, nBytes: null, nCharacters: null };

/** @param {Shown} shown */
function sayOf({ measurement, word, kind }) {
  const { units, nDone, whole, isRunning } = measurement;
  if (measurement.problem) return measurement.problem;
  const what = kind === "token" ? `“${word}”` : "the answer";
  if (whole === null || !nDone)
    return isRunning
      ? "Reading the whole prompt …"
      : `How likely would ${what} be without each of the ${plural(units.length, "part")} of the prompt? ` +
          `The engine reads the text ${plural(units.length + 1, "time")}.`;
  const start = kind === "token" ? `p ${probability(Math.exp(whole))}` : `log-probability ${short(whole)}`;
  return `With the whole prompt, ${what} has ${start}. Measured: ${nDone} of ${plural(units.length, "part")}.`;
}

/** @param {(number | null)[]} effects */
function drawList(effects) {
  if (!now) return;
  const { units } = now.measurement;
  const known = effects.flatMap((effect, i) => (effect === null ? [] : [{ i, effect }]));
  known.sort((a, b) => Math.abs(b.effect) - Math.abs(a.effect));
  const most = Math.abs(known[0]?.effect ?? 1) || 1;
  at.list.replaceChildren(
    ...known.slice(0, N_LISTED).map(({ i, effect }) => {
      const item = el("li");
      const bar = shareBar(Math.abs(effect) / most, effect < 0 ? "lamp" : "");
      item.append(el("span", "w", units[i].text.trim()), bar, el("span", "n", signed(effect)));
      return item;
    }),
  );
}

/** @param {number} nats */
const short = (nats) => nats.toFixed(2).replace("-", "−");
/** How the log-probability changes without a part. @param {number} effect */
const signed = (effect) => (effect < 0 ? `+${short(-effect)}` : short(-effect));

function drawLooked() {
  if (!now) return;
  const { measurement, kind, word } = now;
  const { units, whole, left } = measurement;
  const effects = units.map((_, unit) => measurement.effect(unit) ?? -Infinity);
  const i = looked ?? (measurement.nDone ? effects.indexOf(Math.max(...effects)) : -1);
  const rest = left[i];
  text.mark(units[i]?.from ?? -1);
  if (whole === null || rest === null || rest === undefined) return setText(at.one, "");
  const what = kind === "token" ? `“${word}”` : "the answer";
  const [before, after] =
    kind === "token"
      ? [`${percent(Math.exp(whole))} %`, `${percent(Math.exp(rest))} %`]
      : [`log-probability ${short(whole)}`, short(rest)];
  return setText(at.one, `Without “${units[i].text.trim()}”, ${what} goes from ${before} to ${after}.`);
}
