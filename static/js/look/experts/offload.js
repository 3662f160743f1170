// View of Experts for a device without room for all: which experts were on the device in the step of
// the focused token, which it had to load from host memory, and what that cost.

import { el, fitCanvas, setText, setVars } from "../../ui/dom.js";
import { bytes, count, duration, percent, plural, tokenLabel } from "../../ui/format.js";
import { numberOf, pin } from "../../view.js";
import { rule } from "../shared/chart.js";
import { Missing } from "../shared/context.js";
import { addRow, clearRows, newTable, numeric } from "../shared/table.js";
import { broadOf, drawBeside, drawDense, drawNames, heightOf, layOut } from "./grid.js";
import { hitRate, numbersOf, statesOf, stepAt, stepsOf, sumOf } from "./offload-figures.js";

/** @typedef {import("./offload-figures.js").OffloadStep} OffloadStep */
/** @typedef {import("./offload-figures.js").OffloadSum} OffloadSum */

/** @type {[state: ExpertState, colour: PaletteName, words: string][]} */
const STATES = [
  ["held", "edge", "on the device"],
  ["found", "data", "hit"],
  ["brought", "ink", "loaded"],
];
const COLOURS = new Map(STATES.map(([state, colour]) => [state, colour]));
/** Pitch of the bars of steps (px). */
const PITCH = 5;
/** Parts of `figuresOf`, with what they mean. */
const ROWS = {
  hits: "Share of the experts that a step needed and the device had.",
  loaded: "Experts copied from host memory. Each counts once for each layer and step.",
  bytes: "Bytes of their weights, as the device stores them.",
  time: "From handing them to the driver until the device had them.",
  rate: "Bytes by time.",
};

const at = {
  summary: el("p", "readout ex-summary"),
  field: el("div", "ex-map"),
  canvas: el("canvas"),
  strip: el("canvas", "ex-steps"),
  stripName: el("p", "ex-steps-name"),
  table: newTable("ex-figures", "Cache of experts", ["", ...numeric(["this step", "whole run"])]),
};

/** Steps of the last `show`, and the place of the focused one. @type {{steps: OffloadStep[], focus: number}} */
let now = { steps: [], focus: -1 };

/** @type {InstrumentView<RunFocus>} */
export const offload = {
  name: "offload",
  label: "Offload",

  setUp(root) {
    const bar = root.appendChild(el("div", "ex-bar"));
    bar.append(at.summary, buildKey());
    at.field.append(at.canvas);
    at.field.setAttribute("role", "img");
    const side = el("div", "column ex-side");
    at.strip.setAttribute("aria-hidden", "true");
    at.strip.addEventListener("click", ({ offsetX }) => {
      const step = now.steps[firstShown(at.strip.clientWidth) + Math.floor(offsetX / PITCH)];
      if (step) pin(step.index);
    });
    side.append(at.table, at.stripName, at.strip);
    root.append(at.field, side);
  },

  show({ answer, token, index, row, hello }) {
    const steps = stepsOf(answer);
    if (!steps.length) throw new Missing(NOT_OFFLOADED);
    now = { steps, focus: stepAt(steps, token ? index : null) };
    const step = steps[now.focus] ?? null;
    const word = token ? `${numberOf(token)} “${tokenLabel(token.text, "·")}”` : "";
    const own = step && sumOf([step.experts]);
    const whole = sumOf(steps.map(({ experts }) => experts));
    setText(at.summary, inWords(step, own, word));
    at.field.setAttribute("aria-label", at.summary.textContent ?? "");
    drawGrid(step, hello.model, row?.layer ?? -1);
    drawFigures(own, whole);
    drawStrip();
    return (
      `Counted by the engine in ${plural(steps.length, "step")} of this run, over all rows of a step. Times are ` +
      "measured with Capture on; the step then waits for the copies."
    );
  },

  table: () => numbersOf(now.steps),
};

const NOT_OFFLOADED =
  "All experts are on the device, so none is loaded. Start the server with --expert-slots N to keep N of " +
  "each layer there, and the others in host memory.";

function buildKey() {
  const key = el("p", "key ex-key");
  for (const [state, , words] of STATES) {
    const one = key.appendChild(el("span", "", words));
    const swatch = el("i");
    swatch.dataset.state = state;
    one.prepend(swatch);
  }
  return key;
}

/** @param {OffloadStep | null} step @param {OffloadSum | null} sum @param {string} word */
function inWords(step, sum, word) {
  if (!step || !sum) return `No step of this run computed ${word}, which was in the KV cache.`;
  const what = step.n ? `A step of ${plural(step.n, "prompt token")}` : `The step that chose token ${word}`;
  const used = `needed ${plural(sum.found + sum.brought, "expert")}: ${count(sum.found)} were on the device`;
  const cost = sum.ms === null ? bytes(sum.bytes) : `${bytes(sum.bytes)} in ${duration(sum.ms)}`;
  const loaded = sum.brought ? `${count(sum.brought)} loaded, ${cost}` : "none was loaded";
  const unknown = step.experts.layers?.length ? "" : " Which ones is known with Capture on.";
  return `${what} ${used}, ${loaded}.${unknown}`;
}

// ---- pictures ----------------------------------------------------------------------------------

/** Columns beside the rows, whose bars are relative to the largest of a step. @param {ToPage.LayerExpertUse[]} layers @returns {GridColumn<ToPage.LayerExpertUse>[]} */
function columnsOf(layers) {
  const [mostBytes, mostMs] = [
    Math.max(1, ...layers.map(({ n_bytes: n }) => n)),
    Math.max(1e-9, ...layers.map(({ ms }) => ms)),
  ];
  const share = (/** @type {ToPage.LayerExpertUse} */ { found, brought }) =>
    hitRate({ found: found.length, brought: brought.length }) ?? 0;
  return [
    { name: "hits, %", at: share, text: (layer) => String(Math.round(100 * share(layer))) },
    { name: "loaded, MB", at: ({ n_bytes: n }) => n / mostBytes, text: ({ n_bytes: n }) => (n / 1e6).toFixed(1) },
    { name: "ms", at: ({ ms }) => ms / mostMs, text: ({ ms }) => (ms < 10 ? ms.toFixed(1) : ms.toFixed(0)) },
  ];
}

/** @param {OffloadStep | null} step @param {ToPage.PageModelInfo} model @param {number} hot */
function drawGrid(step, { n_experts: n = 0, n_layers: nLayers }, hot) {
  const layers = step?.experts.layers ?? [];
  const left = parseFloat(getComputedStyle(at.canvas).getPropertyValue("--names"));
  setVars(at.canvas, { "--min-height": `${heightOf(nLayers)}px`, "--broad": `${broadOf(n, left)}px` });
  const [context, width, height] = fitCanvas(at.canvas);
  if (!width) return;
  const places = layOut(width, height, left, { n, nLayers }, columnsOf(layers));
  drawNames(context, { n, nLayers, left, hot }, places);
  const { x, y, wide, row } = places;
  const high = Math.max(1, row - 2);
  for (const layer of layers)
    statesOf(layer, n).forEach((state, expert) => {
      rule(context, x(expert), y(layer.layer) + high, wide(expert), 1);
      const colour = COLOURS.get(state);
      if (colour) rule(context, x(expert), y(layer.layer), wide(expert), high, colour);
    });
  drawBeside(context, layers, places);
  if (layers.length) drawDense(context, { nLayers, having: new Set(layers.map(({ layer }) => layer)) }, places);
}

/** @param {OffloadSum | null} own @param {OffloadSum} whole */
function drawFigures(own, whole) {
  clearRows(at.table);
  const columns = [own, whole].map((sum) => (sum ? figuresOf(sum) : {}));
  for (const [name, what] of Object.entries(ROWS)) {
    const cells = columns.map((figures) => figures[name] ?? "–");
    addRow(at.table, [name, ...cells]).title = what;
  }
}

/** @param {OffloadSum} sum @returns {Record<string, string>} */
function figuresOf(sum) {
  const rate = hitRate(sum);
  const isTimed = sum.ms !== null && sum.ms > 0;
  return {
    hits: rate === null ? "–" : `${percent(rate)} %`,
    loaded: `${count(sum.brought)} of ${count(sum.found + sum.brought)}`,
    bytes: bytes(sum.bytes),
    time: sum.ms === null ? "–" : duration(sum.ms),
    rate: isTimed ? `${bytes((sum.timedBytes / (sum.ms ?? 1)) * 1000)}/s` : "–",
  };
}

/** First step of the strip, whose newest is at its right end. @param {number} width */
const firstShown = (width) => Math.max(0, now.steps.length - Math.floor(width / PITCH));

/** A bar per step, as high as the share of its experts that were loaded. */
function drawStrip() {
  const [context, width, height] = fitCanvas(at.strip);
  if (!width) return;
  const { steps, focus } = now;
  const first = firstShown(width);
  setText(at.stripName, `Experts loaded in ${first ? "the newest" : "all"} ${plural(steps.length - first, "step")}`);
  rule(context, 0, height - 1, width, 1, "edge");
  steps.slice(first).forEach(({ experts }, i) => {
    const isFocus = first + i === focus;
    const high = (1 - (hitRate(experts) ?? 1)) * (height - 2) || (isFocus ? 2 : 0);
    if (high) rule(context, i * PITCH, height - 1 - high, PITCH - 1, high, isFocus ? "lamp" : "ink");
  });
}
