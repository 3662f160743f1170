// View of Experts: the score of each expert by REAP, gathered from the text; experts can be switched
// off, and what that changes is measured on the same text.

import { isEmpty, spansFromStart, spansUpTo } from "../../interventions/interventions.js";
import * as store from "../../interventions/intervention-store.js";
import { expertPlace, toWire, withExpertsOff } from "../../interventions/intervention-wire.js";
import { changed, ready, state } from "../../state.js";
import { el, newButton, setText } from "../../ui/dom.js";
import { count, duration, figure, percent, plural } from "../../ui/format.js";
import { newSegmented } from "../../ui/segmented.js";
import { effectOf, measured, readEffect } from "../reach/effect.js";
import { drawRange, newRange } from "../reach/factor-bar.js";
import { NextTokens } from "../reach/next-tokens.js";
import { askLatest, askNewest } from "../shared/answer-cache.js";
import { Missing, runKey, sequenceOf } from "../shared/context.js";
import { addRow, clearRows, newTable, numeric } from "../shared/table.js";
import { ExpertCursor, layerAt } from "./cursor.js";
import { GridField } from "./grid-field.js";
import { drawScores } from "./prune-grid.js";
import { ExpertScores } from "./scores.js";

/** Most tokens at the end of the text whose predictions are compared. */
const MAX_COMPARED = 128;

/** @typedef {"all" | "layer"} Scope */
/** @type {[scope: Scope, label: string][]} */
const SCOPES = [
  ["all", "in every layer"],
  ["layer", "in this layer"],
];

/** What switching experts off did, for one setting and text. @typedef {{key: string, answer: FrameAnswer | null, problem: string}} Compared */

/** Scores of the text that is shown. */
let scores = new ExpertScores("");
let asking = false;
/** @type {Compared} */
let compared = { key: "", answer: null, problem: "" };
/** @type {Scope} */
let scope = "all";
let gesture = Symbol("drag");
/** @type {GridField} */
let field;
/** @type {NextTokens} */
let tokens;
/** @type {TokenFocus} */
let now;
/** The layer that is selected. */
let layer = 0;

const cursor = new ExpertCursor(
  () => (scores.tokens ? { layers: scores.layers, n: scores.n } : null),
  (at) => scores.lowest(at, 1)[0]?.expert ?? 0,
  toggle,
);

const at = {
  summary: el("p", "readout ex-summary"),
  lowest: newRange({ min: 0, step: 1, value: 0 }),
  number: el("output", "ex-number"),
  reset: newButton("All on", () => switchOff([]), "text"),
  toggle: newButton("Switch off", () => toggle(cursor.cell(layer)), "text"),
  table: newTable("ex-figures", "The text with all experts, and without those that are off", [
    "",
    ...numeric(["all on", "some off"]),
  ]),
  says: el("p", "ex-says"),
};

/** @type {InstrumentView<RunFocus>} */
export const prune = {
  name: "prune",
  label: "Prune",

  setUp(root) {
    const bar = root.appendChild(el("div", "ex-bar"));
    bar.append(buildControls(), at.summary);
    field = new GridField(root, cursor, {
      id: "ex-prune-how",
      how: "Up and down arrows select layers, left and right select experts. Enter switches one off or on.",
    });
    const side = root.appendChild(el("div", "column ex-side"));
    at.says.setAttribute("role", "status");
    side.append(at.says, at.table);
    tokens = new NextTokens(side.appendChild(el("section", "ex-next")));
  },

  show(context) {
    const { token, index } = context;
    if (!token || index === null) throw new Missing("No token yet. Prefill is running.");
    now = { ...context, token, index };
    const sequence = sequenceOf(now);
    const run = runKey(sequence.segment);
    if (scores.run !== run) scores = new ExpertScores(run);
    if (scores.tokens < sequence.ids.length) gather(sequence);
    if (!scores.tokens) throw new Missing(whyNone());
    compare(sequence);
    draw();
    return (
      `REAP scores, mean of gate × length of the output, over ${plural(scores.tokens, "token")} of this run, ` +
      "computed again from the KV cache."
    );
  },

  hide() {
    cursor.hovered = null;
  },

  table: () => ({
    columns: ["layer", "expert", "tokens", "score", "rank in layer", "off"],
    rows: scores.layers.toReversed().flatMap((each) => {
      const { counts, scores: own } = scores.of(each);
      const rank = new Map(scores.lowest(each, scores.n).map(({ expert }, i) => [expert, scores.n - i]));
      return own.map((score, expert) => {
        return [each, expert, counts[expert], score, rank.get(expert), isOff(each, expert) ? 1 : 0];
      });
    }),
  }),
};

function whyNone() {
  if (state.replay) return "This needs the engine, and a replay has none.";
  return ready() ? "Computing …" : "The engine is not ready. Continues automatically once it is.";
}

// ---- questions ---------------------------------------------------------------------------------

/** Count the tokens of the text that are not counted yet. @param {Sequence} sequence */
async function gather({ segment, ids }) {
  if (asking || !ready() || state.replay) return;
  asking = true;
  const to = scores;
  /** @type {FromPage.Routing} */
  const question = { kind: "routing", ids, first: to.tokens, ...spansUpTo(segment, ids.length) };
  try {
    to.add(await askNewest("experts", question, segment, now.signal));
  } catch (error) {
    const { code, message } = /** @type {Problem} */ (error);
    if (code !== "lost") compared = { ...compared, problem: message };
  }
  asking = false;
  changed("look");
}

/** Compare the text with all experts and without those that are off, once it is written. @param {Sequence} sequence */
async function compare({ segment, ids }) {
  const set = toWire(state.interventions.setting);
  const { experts, ...others } = set;
  if (!experts?.length || segment.running || !ready() || state.replay) return;
  const key = JSON.stringify([runKey(segment), ids.length, set]);
  if (compared.key === key) return;
  compared = { key, answer: null, problem: "" };
  const nPrompt = segment.prompt.length;
  const spans = (/** @type {FromPage.Interventions} */ reach) => (isEmpty(reach) ? [] : spansFromStart(reach, nPrompt));
  /** @type {FromPage.InterventionEffect} */
  const question = {
    kind: "intervention_effect",
    ids,
    first: Math.max(0, ids.length - MAX_COMPARED),
    reached: spans(set),
    base: spans(others),
  };
  try {
    const answer = await askLatest("experts off", question);
    if (compared.key === key) compared = { key, answer, problem: "" };
  } catch (error) {
    const { message } = /** @type {Problem} */ (error);
    if (compared.key === key) compared = { key, answer: null, problem: message };
  }
  changed("look");
}

// ---- switching off -----------------------------------------------------------------------------

/** @param {number} of @param {number} expert */
const isOff = (of, expert) => state.interventions.setting.factors[expertPlace(of, expert)] === 0;

/** Experts that are off. */
const off = () => toWire(state.interventions.setting).experts ?? [];

/** @param {FromPage.ExpertOff[]} experts @param {unknown} [by] */
const switchOff = (experts, by = null) =>
  store.change(withExpertsOff(state.interventions.setting, experts), by);

/** Most experts of a layer that can be off. */
const mostOff = () => scores.n - scores.perToken;

/** Switch an expert off, or on again. @param {ExpertCell} cell */
function toggle({ layer: of, expert }) {
  const others = off().filter((one) => one.layer !== of || one.expert !== expert);
  if (others.length < off().length) return switchOff(others);
  if (others.filter((one) => one.layer === of).length < mostOff()) switchOff([...others, { layer: of, expert }]);
}

/** Switch off the lowest `n` experts of the layers in `scope`; others stay as they are. @param {number} n */
function switchLowest(n) {
  const within = scope === "all" ? scores.layers : [layer];
  const others = off().filter((one) => !within.includes(one.layer));
  switchOff([...others, ...within.flatMap((each) => scores.lowest(each, n))], gesture);
}

function buildControls() {
  const controls = el("div", "controls ex-controls");
  const label = controls.appendChild(el("label", "", "Lowest off"));
  const { node, input } = at.lowest;
  input.addEventListener("input", () => switchLowest(Number(input.value)));
  input.addEventListener("change", () => (gesture = Symbol("drag")));
  label.append(node, at.number);
  const scopes = newSegmented({
    legend: "Layers",
    name: "ex-scope",
    options: SCOPES,
    value: scope,
    onChange(value) {
      scope = value;
      changed("look");
    },
  });
  controls.append(scopes, at.toggle, at.reset);
  return controls;
}

// ---- drawing -----------------------------------------------------------------------------------

function draw() {
  const { hello, row } = now;
  layer = layerAt(scores.layers, cursor.hovered?.layer ?? row?.layer);
  const own = cursor.cell(layer);
  const cell = cursor.hovered ?? own;
  drawControls(own);
  const { node, text } = describe(cell);
  at.summary.replaceChildren(node, text);
  Object.assign(field, drawScores(field.canvas, { scores, nLayers: hello.model.n_layers, cell, hot: layer, isOff }));
  field.describe(own, `layer ${own.layer}, expert ${own.expert}:${describe(own).text}`);
  drawCompared();
  drawNext();
}

/** @param {ExpertCell} own */
function drawControls(own) {
  const nOff = off().length;
  const ofLayer = off().filter((one) => one.layer === layer).length;
  const n = scope === "layer" ? ofLayer : Math.round(nOff / scores.layers.length);
  const isFree = !state.replay && mostOff() > 0;
  Object.assign(at.lowest.input, { max: String(mostOff()), disabled: !isFree });
  drawRange(at.lowest, n, `${n} of ${scores.n}`);
  setText(at.number, `${n} of ${scores.n}`);
  const isOn = !isOff(own.layer, own.expert);
  setText(at.toggle, `${isOn ? "Switch off" : "Switch on"} ${own.layer}.${own.expert}`);
  at.toggle.disabled = !isFree || (isOn && ofLayer >= mostOff());
  at.reset.disabled = !nOff || !!state.replay;
}

/** @param {ExpertCell} cell */
function describe({ layer: of, expert }) {
  const node = el("b", "", `layer ${of}, expert ${expert}`);
  if (!scores.layers.includes(of)) return { node, text: " does not exist: this layer is dense." };
  const { counts, scores: own } = scores.of(of);
  const place = scores.n - scores.lowest(of, scores.n).findIndex((one) => one.expert === expert);
  const state_ = isOff(of, expert) ? "off; " : "";
  const score = counts[expert] ? `score ${figure(own[expert])}, ` : "never chosen, ";
  return { node, text: ` ${state_}${score}place ${place} of ${scores.n} in its layer; ${plural(counts[expert], "token")}` };
}

function drawCompared() {
  clearRows(at.table);
  const { answer, problem } = compared;
  const nOff = off().length;
  at.table.hidden = !nOff || !answer;
  setText(at.says, saysOf(nOff, problem));
  if (at.table.hidden || !answer) return;
  const { kl, same_top: same, logprobs } = answer.arrays;
  const mean = (/** @type {ArrayLike<number> & Iterable<number>} */ values) =>
    [...values].reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
  const [, n] = logprobs.shape;
  const perplexity = [0, 1].map((way) => Math.exp(-mean(logprobs.values.subarray(way * n, (way + 1) * n))));
  addRow(at.table, ["perplexity", ...perplexity.map((value) => value.toPrecision(4))]);
  addRow(at.table, ["KL, nats", "0", mean(kl.values).toPrecision(3)]);
  addRow(at.table, ["same first choice", "100 %", `${percent(mean(same.values))} %`]);
}

/** @param {number} nOff @param {string} problem */
function saysOf(nOff, problem) {
  if (problem) return problem;
  if (!nOff) return "All experts are on. Those that are off cannot be chosen; the router takes the next ones.";
  const what = `${plural(nOff, "expert")} of ${count(scores.n * scores.layers.length)} off.`;
  if (now.answer.segment?.running) return `${what} The text is compared once it is written.`;
  const { answer } = compared;
  if (!answer) return `${what} Comparing …`;
  const n = answer.arrays.kl.shape[0];
  const time = answer.info.ms ? ` in ${duration(answer.info.ms)}` : "";
  return `${what} Compared after ${n === scores.tokens ? "each" : `the last ${count(n)}`} of ${plural(scores.tokens, "token")}${time}:`;
}

function drawNext() {
  const effect = effectOf(now);
  const both = effect.why === undefined ? measured(effect) : null;
  const found = effect.why === undefined && both && "without" in both ? readEffect(effect, both) : null;
  const trouble = both && "trouble" in both ? both.trouble : "Computing …";
  tokens.draw(effect, found, effect.why ?? trouble);
}
