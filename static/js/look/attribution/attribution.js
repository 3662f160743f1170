// Attribution instrument: how much each word of the prompt contributed to the focused token, to the whole
// answer or to an answer that the user types, measured by leaving the word out or by masking attention to it;
// and how much the order of the words did, measured by swapping them and by switching rotary positions off.

import { NOT_MEASURED } from "../../turns/answer.js";
import { tokenize } from "../../net/inspect.js";
import { spansUpTo } from "../../interventions/interventions.js";
import { changed } from "../../state.js";
import { el, newButton, setText } from "../../ui/dom.js";
import { plural, sentence, tokenLabel } from "../../ui/format.js";
import { Missing, sequenceOf } from "../shared/context.js";
import { MAX_NATS } from "../loss/reading.js";
import { LossText } from "../loss/text.js";
import { Choices } from "./choices.js";
import { KnockoutGrid } from "./grid.js";
import { LikelyTable } from "./likely.js";
import { newList } from "./list.js";
import { Measurement } from "./measure.js";
import { Selection } from "./selection.js";
import { byHead, partsOf, selectedUnit, unitsOf } from "./units.js";
import { windowsOf } from "./windows.js";
import { nameOf, numbersOf, oneOf, POSITIONS_OFF, rowName, sayOf } from "./words.js";

/** @typedef {import("./measure.js").Step} Cell */
/** @typedef {import("./units.js").PromptPart} PromptPart */
/** @typedef {import("./selection.js").Span} Span */
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
const choices = new Choices(restart);
/** @type {Shown | null} */
let now = null;
/** What is pointed at or selected: a part of the prompt, ROPE_OFF, or null. @type {Cell | null} */
let looked = null;
/** `looked` at what switching positions off does. @type {Cell} */
const ROPE_OFF = { unit: -1, window: null };
let leaving = new AbortController();

/**
 * Elements.
 *
 * @type {{go: HTMLButtonElement, bar: HTMLProgressElement, say: HTMLElement, one: HTMLElement}}
 */
let at;
/** @type {ReturnType<typeof newList>} */
let list;
/** @type {LikelyTable} */
let likely;
/** @type {LossText} */
let text;
/** @type {KnockoutGrid} */
let grid;
/** @type {Selection} */
let selection;
/** The prompt in which tokens are selected: its ids. */
let selectedIn = "";

/** @type {Instrument} */
export const attribution = {
  needs: "token",
  asks: true,

  setUp(root) {
    root.append(buildSide(), buildText(), buildList());
  },

  async show(focus) {
    now = await shownFrom(focus);
    draw(focus.hello.model.n_layers);
    const { nDone, change } = now.measurement;
    if (!nDone) return "Nothing is computed until you measure.";
    const parts = choices.unit === "selection" ? "the selected tokens" : "each part of it";
    const how = change === "mask" ? `attention to ${parts} masked` : `${parts} changed`;
    return `The engine read ${plural(nDone + 1, "text")}: with the prompt as it is, and with ${how}.`;
  },

  hide: () => leaving.abort(),

  table: () => (now ? numbersOf(now.measurement) : { columns: [], rows: [] }),
};

// ---- what is measured ---------------------------------------------------------------------------

/** @param {TokenFocus} focus @returns {Promise<Shown>} */
async function shownFrom(focus) {
  const { token, hello } = focus;
  if (token.prompt !== undefined)
    throw new Missing("This token is part of the prompt. Select one of the answer to see which words it depends on.");
  const { segment, ids, texts, position } = sequenceOf(focus);
  const { target, typed, change, unit } = choices;
  if (target === "answer" && segment.running) throw new Missing("The answer is still being written.");
  if (segment.edited) throw new Missing(NOT_MEASURED);
  const spans = spansUpTo(segment, ids.length);
  if (spans.reached && change !== "mask")
    throw new Missing("This text was written with interventions, whose positions would shift when words are left out.");
  const parts = partsOf(segment.prompt, await cutOf(segment));
  const word = token.eos ? "end of text" : tokenLabel(texts[position], "·");
  const predicted = await predictedFrom({ ids, position, first: segment.prompt.length, word });
  const { ids: asked, first } = predicted.target;
  const { name, dtype, n_layers: nLayers } = hello.model;
  const width = change === "mask" ? choices.widthFor(nLayers) : 0;
  const units = predicted.what ? chosenUnits(segment, parts, hello.model.n_heads) : [];
  const of = unit === "selection" && units.length ? [units.length, units[0].from, units[0].to] : [];
  const choice = [target, target === "typed" && typed, change, unit, ...of, width, asked.length];
  const key = [name, dtype, segment.id, ...choice].join(" ");
  const layers = { windows: width ? windowsOf(nLayers, width) : [], nLayers };
  const measurement = kept.get(key) ?? new Measurement({ ...predicted.target, spans }, units, change, layers);
  return { key, segment, parts, measurement, what: predicted.what, isToken: asked.length === first + 1 };
}

/**
 * The parts of the prompt that are changed, as chosen; none without a selection, if that is chosen.
 *
 * @param {Segment} segment
 * @param {PromptPart[]} parts
 * @param {number} nHeads
 */
function chosenUnits({ prompt }, parts, nHeads) {
  if (choices.unit !== "selection") return unitsOf(parts, choices.unit);
  if (selectedIn !== keyOf(prompt)) selectIn(prompt, null);
  if (!selection.span) return [];
  const unit = selectedUnit(parts, selection.span);
  return choices.isByHead ? byHead(unit, nHeads) : [unit];
}

/** @param {ToPage.TokenText[]} prompt */
const keyOf = (prompt) => prompt.map(({ id }) => id).join(" ");

/** @param {ToPage.TokenText[]} prompt @param {Span | null} span */
function selectIn(prompt, span) {
  selection.set(span);
  selectedIn = keyOf(prompt);
}

/**
 * What is predicted: its ids after those of the prompt, and in words, "" if none was typed. `first`: the place
 * of the answer.
 *
 * @param {{ids: number[], position: number, first: number, word: string}} focused
 */
async function predictedFrom({ ids, position, first, word }) {
  const { target, typed } = choices;
  if (target === "token") return { target: { ids: ids.slice(0, position + 1), first: position }, what: `“${word}”` };
  if (target === "answer") return { target: { ids, first }, what: "the answer" };
  if (!typed) return { target: { ids, first }, what: "" };
  const { tokens } = await tokenize({ text: typed });
  const own = { ids: [...ids.slice(0, first), ...tokens.map(({ id }) => id)], first };
  return { target: own, what: `“${typed.trim()}”` };
}

/** @param {Segment} segment */
function cutOf(segment) {
  const { messages, prompt, continue_final, tools } = segment.originalRequest;
  const read = messages?.filter((_, i) => !segment.dropped.includes(i));
  /** @type {Countable} */
  const what = read ? { messages: read, continue_final: !!continue_final, ...(tools && { tools }) } : { prompt };
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

/** Before another choice is measured, what is measured stops. */
function restart() {
  leaving.abort();
  if (choices.unit === "selection" && !selection.span) selectLooked();
  looked = null;
  changed("look");
}

/** Select the part of the prompt that is looked at. */
function selectLooked() {
  if (!now?.measurement.nDone) return;
  const unit = now.measurement.units[cellOf(now.measurement).unit];
  if (unit) selectIn(now.segment.prompt, { from: unit.from, to: unit.to });
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
  at = { go, bar, say, one };
  side.append(...choices.nodes, say, go, bar);
  return side;
}

function buildText() {
  const column = el("div", "ab-prompt");
  const box = column.appendChild(el("div", "ls-read"));
  const words = box.appendChild(el("p", "ls-text"));
  words.setAttribute("role", "group");
  words.setAttribute("aria-label", "Prompt, shaded by the effect of its parts");
  const look = (/** @type {number | null} */ i) => {
    const unit = i === null ? null : unitAt(i);
    lookAt(unit === null ? null : { unit, window: null });
  };
  text = new LossText(words, look, look);
  selection = new Selection(text, restart);
  grid = new KnockoutGrid(lookAt);
  column.append(grid.node);
  return column;
}

function buildList() {
  const box = el("div", "ab-list");
  likely = new LikelyTable();
  list = newList(lookAt);
  box.append(at.one, likely.box, list.box);
  return box;
}

// ---- drawing ------------------------------------------------------------------------------------

/** Index of the first unit that a prompt token belongs to; null: none. @param {number} i */
function unitAt(i) {
  const found = now?.measurement.units.findIndex(({ from, to }) => from <= i && i < to) ?? -1;
  return found < 0 ? null : found;
}

/** @param {number} nLayers */
function draw(nLayers) {
  choices.draw(nLayers);
  if (!now) return;
  const { measurement } = now;
  const { nDone, isRunning, isComplete, steps, change } = measurement;
  setText(at.go, isRunning ? "Stop" : nDone && !isComplete ? "Continue" : "Measure");
  at.go.hidden = isComplete;
  Object.assign(at.bar, { max: Math.max(1, steps.length), value: nDone, hidden: !isRunning });
  setText(at.say, sayOf(measurement, now));
  grid.node.hidden = change !== "mask" || !measurement.units.length;
  list.draw(listed(measurement), change, measurement.isByHead);
  drawLooked();
}

/** What was measured, for the list. @param {Measurement} measurement */
function listed(measurement) {
  const { units, whole, withoutRope, isByHead, steps } = measurement;
  const isListed = (/** @type {Cell} */ { unit, window }) => (isByHead ? units[unit].head !== undefined : window === null);
  const cells = steps.filter(isListed);
  const known = cells.flatMap((cell) => {
    const { unit, window } = cell;
    const effect = measurement.effect(unit, window);
    const name = isByHead ? `layer ${window}, ${rowName(measurement, unit)}` : nameOf(units[unit]);
    return effect === null ? [] : [{ cell, text: name, effect }];
  });
  if (whole && withoutRope && typeof withoutRope !== "string")
    known.push({ cell: ROPE_OFF, text: POSITIONS_OFF, effect: whole.logprob - withoutRope.logprob });
  return known;
}

/** @param {Cell | null} cell */
function lookAt(cell) {
  if (cell?.unit === looked?.unit && cell?.window === looked?.window) return;
  looked = cell;
  drawLooked();
}

/** What is looked at; if nothing is, the part that changes most. @param {Measurement} measurement @returns {Cell} */
function cellOf(measurement) {
  if (looked) return looked;
  if (measurement.change === "swap" || !measurement.nDone) return ROPE_OFF;
  const effects = measurement.units.map((_, unit) => measurement.effect(unit) ?? -Infinity);
  return { unit: effects.indexOf(Math.max(...effects)), window: null };
}

/** Draw the prompt, and what is looked at. */
function drawLooked() {
  if (!now) return;
  const { measurement } = now;
  const { units, whole, withoutRope } = measurement;
  const cell = cellOf(measurement);
  const isRopeOff = cell.unit === ROPE_OFF.unit;
  drawPrompt(now, cell);
  const isSelecting = choices.unit === "selection";
  selection.draw(isSelecting);
  text.mark(isRopeOff || isSelecting ? -1 : units[cell.unit].from); // the selection is marked as such
  const reading = isRopeOff ? withoutRope : measurement.reading(cell.unit, cell.window);
  const known = reading && typeof reading !== "string" ? reading : null;
  likely.draw(whole, known);
  const words = known ? oneOf(measurement, now, isRopeOff ? null : cell, known) : "";
  setText(at.one, typeof reading === "string" ? sentence(reading) : words);
  if (!grid.node.hidden) grid.draw(measurement, cell, words || "not measured");
}

const NOTHING = { rank: null, bits: null, top: null, nBytes: null, nCharacters: null };

/** Shade each part of the prompt by its share of the largest effect, in the layers and the head that are looked at. @param {Shown} shown @param {Cell} cell */
function drawPrompt({ measurement, parts, segment }, { unit: row, window }) {
  const { isByHead } = measurement;
  const effects = measurement.units.map((_, i) => measurement.effect(isByHead ? Math.max(0, row) : i, window));
  const darkest = measurement.largest / MAX_NATS;
  text.draw(
    parts.map(({ text: own, special }, i) => {
      const unit = unitAt(i);
      const effect = unit === null ? null : effects[unit];
      const known = effect === null ? null : Math.max(0, effect / darkest);
      return { id: segment.prompt[i].id, text: own, special, loss: known, ...NOTHING };
    }),
  );
}
