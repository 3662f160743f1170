// Forward pass: every step of the computation of one token through one layer, in the order in which the
// model computes it, with the real numbers.

import { spansUpTo } from "../../interventions/interventions.js";
import { changed, state } from "../../state.js";
import { clamp, el, newButton, setText } from "../../ui/dom.js";
import { duration, tokenLabel } from "../../ui/format.js";
import { focusRow, view } from "../../view.js";
import { AnswerCache, askLatest, askNewest, askOnce } from "../shared/answer-cache.js";
import { runKey, sequenceOf } from "../shared/context.js";
import { RovingTabindex } from "../shared/roving.js";
import { askInventory } from "../weights/data.js";
import { linesOf } from "./lines.js";
import { LineView, tensorsOf } from "./line-view.js";
import { keyOf, keyProducts, tableOf } from "./parts.js";
import { cosine, extent } from "./vectors.js";

/** @typedef {import("./lines.js").Line} Line */
/** @typedef {import("./line-view.js").DispatchEntry} DispatchEntry */
/** @typedef {Pick<FrameAnswer, "info" | "arrays">} Given */
/** @typedef {ReturnType<typeof placeOf>} ForwardPlace */

const TOP = 5;
const MAX_BYTES = 48e6;

const cache = new AnswerCache(MAX_BYTES);
/** Elements. */
const at = {
  summary: el("p", "fw-summary"),
  layer: el("select"),
  head: el("select"),
  beside: el("input"),
  lines: el("ol", "fw-lines"),
};
/** @type {RovingTabindex} */
let roving;
/** Key of the open line, the selected head, and the position of the selected key. */
let open = "";
let head = 0;
/** @type {number | null} */
let key = null;
/** @type {LineView[]} */
let views = [];
/** Tensors of the model, and the dispatches of a step; null until known. @type {import("./lines.js").TensorEntry[] | null} */
let tensors = null;
/** @type {DispatchEntry[]} */
let dispatches = [];
let modelAsked = "";
/** What the last `show` drew. @type {{place: ForwardPlace, lines: Line[], beside: Line[], shown: import("./parts.js").Shown} | null} */
let now = null;

/** @type {Instrument} */
export const forward = {
  needs: "token",
  asks: true,

  setUp(root) {
    const bar = root.appendChild(el("div", "fw-top"));
    bar.append(at.summary, controls());
    root.append(at.lines);
    roving = new RovingTabindex(at.lines, { after: "ArrowDown", before: "ArrowUp" }, () =>
      views.map(({ button }) => [button]),
    );
  },

  async show(context) {
    const place = placeOf(context);
    const given = await answerOf(place, context);
    const beside = at.beside.checked && place.position > 0 ? await answerOf(besideOf(place), context) : null;
    await aboutModel(place);
    return draw(place, given, beside);
  },

  table: () => {
    const line = now?.lines.find((one) => one.key === open);
    return line ? tableOfLine(line) : tableOfLines();
  },
};

// ---- controls --------------------------------------------------------------------------------

function controls() {
  const box = el("div", "controls");
  at.beside.type = "checkbox";
  const beside = el("label", "fw-beside");
  beside.append(at.beside, "compare with the token before");
  box.append(
    labelled("Layer", at.layer),
    newButton("−", () => setLayer(Number(at.layer.value) - 1), "text fw-step"),
    newButton("+", () => setLayer(Number(at.layer.value) + 1), "text fw-step"),
    labelled("Head", at.head),
    beside,
  );
  const [lower, higher] = box.querySelectorAll("button");
  lower.setAttribute("aria-label", "Layer before");
  higher.setAttribute("aria-label", "Next layer");
  at.layer.addEventListener("change", () => setLayer(Number(at.layer.value)));
  at.head.addEventListener("change", () => setHead(Number(at.head.value)));
  at.beside.addEventListener("change", () => changed("look"));
  return box;
}

/** @param {string} text @param {HTMLSelectElement} select */
function labelled(text, select) {
  const label = el("label", "", text);
  select.setAttribute("aria-label", text);
  label.append(select);
  return label;
}

/** The focused layer is that of the core sample. @param {number} layer */
function setLayer(layer) {
  const last = (state.hello?.model.n_layers ?? 1) - 1;
  focusRow({ layer: clamp(layer, 0, last), part: 0 });
}

/** @param {number} to */
function setHead(to) {
  head = to;
  changed("look");
}

/** @param {string} line */
function toggle(line) {
  open = open === line ? "" : line;
  changed("look");
}

/**
 * Open a line for a head as the user could; returns a function that restores what was shown.
 *
 * @param {string} line
 * @param {number} [of]
 */
export function showForwardLine(line, of = head) {
  const before = { open, head };
  const apply = (/** @type {{open: string, head: number}} */ to) => {
    ({ open, head } = to);
    changed("look");
  };
  apply({ open: line, head: of });
  return () => open === line && head === of && apply(before);
}

// ---- questions -------------------------------------------------------------------------------

/** The place that is asked about: the focused token, the selected layer and head. @param {TokenFocus} context */
function placeOf(context) {
  const { segment, ids, texts, position } = sequenceOf(context);
  const { n_layers: nLayers, n_heads: nHeads } = context.hello.model;
  head = clamp(head, 0, nHeads - 1);
  const layer = clamp(view.row?.layer ?? nLayers - 1, 0, nLayers - 1);
  const index = segment.base + position + 1 - segment.prompt.length;
  const next = position + 1 < segment.prompt.length ? null : (context.answer.tokens[index] ?? null);
  return { segment, ids, texts, position, layer, head, nLayers, nHeads, next };
}

/** @param {ForwardPlace} place */
const besideOf = (place) => ({ ...place, position: place.position - 1 });

/** @param {ForwardPlace} place @param {TokenFocus} context @returns {Promise<Given>} */
async function answerOf({ segment, ids, position, layer, head: of }, { signal }) {
  const name = `${runKey(segment)} ${position} ${layer} ${of}`;
  const known = cache.get(name);
  if (known) return known;
  /** @type {FromPage.ForwardPass} */
  const question = {
    kind: "forward",
    ids: ids.slice(0, position + 1),
    position,
    layer,
    head: of,
    top: TOP,
    ...spansUpTo(segment, position + 1),
  };
  const newest = position + 1 === ids.length;
  const answer = newest ? askNewest("forward", question, segment, signal) : askLatest("forward", question);
  return cache.set(name, await answer);
}

/** Ask once for each model: its tensors, and the dispatches of a step. @param {ForwardPlace} place */
async function aboutModel({ position }) {
  const { model, device } = /** @type {ToPage.Hello} */ (state.hello);
  const name = `${model.name} ${model.dtype} ${device.name}`;
  if (name === modelAsked) return;
  const [inventory, plan] = await Promise.all([
    Promise.resolve(askInventory(model.name)).catch(() => null),
    askOnce({ kind: "plan", n_rows: 1, context: position }).catch(() => null),
  ]);
  tensors = inventory?.tensors ?? null;
  dispatches = plan?.info.dispatches ?? [];
  modelAsked = name;
}

// ---- drawing ---------------------------------------------------------------------------------

/** @param {ForwardPlace} place @param {Given} given @param {Given | null} other */
function draw(place, given, other) {
  const model = { nLayers: place.nLayers, labels: dispatches.map(({ label }) => label) };
  /** @param {Given} answer */
  const linesFor = (answer) => withKeys(linesOf(answer, model), shownOf(place, answer));
  const shown = shownOf(place, given);
  const lines = linesFor(given);
  const beside = other ? linesFor(other) : [];
  now = { place, lines, beside, shown };
  const word = tokenLabel(place.texts[place.position], "·");
  setText(at.summary, `“${word}” at position ${place.position} through layer ${place.layer}`);
  fill(at.layer, place.nLayers, place.layer);
  fill(at.head, place.nHeads, place.head);
  if (views.map(({ root }) => root.dataset.line).join() !== lines.map((line) => line.key).join()) build(lines);
  lines.forEach((line, i) =>
    views[i].draw(line, {
      open: line.key === open,
      beside: beside.find((one) => one.key === line.key) ?? null,
      tensors,
      dispatches,
      shown,
    }),
  );
  return sourceOf(place, given, other);
}

/** Name the tokens of the scores, and add the product of the query with the selected key. @param {Line[]} lines @param {import("./parts.js").Shown} shown */
function withKeys(lines, shown) {
  const chosen = keyOf(shown);
  const word = tokenLabel(shown.texts[shown.info.first_key + chosen], "·");
  const products = { name: `q · k with “${word}”, number by number`, values: keyProducts(shown, chosen) };
  const words = shown.texts.slice(shown.info.first_key).map((text) => tokenLabel(text, "·"));
  return lines.map((line) => {
    if (!line.parts.includes("keys")) return line;
    const named = line.vectors.map((vector) => ({ ...vector, words }));
    return { ...line, vectors: line.key === "scores" ? [...named, products] : named };
  });
}

/** @param {ForwardPlace} place @param {Given} given */
const shownOf = ({ texts, next }, { arrays, info }) => ({
  arrays,
  info,
  texts,
  next,
  key,
  onHead: setHead,
  onKey: (/** @type {number} */ position) => {
    key = position;
    changed("look");
  },
});

/** @param {Line[]} lines */
function build(lines) {
  views = lines.map((line) => new LineView(line, () => toggle(line.key)));
  at.lines.replaceChildren(...views.map(({ root }) => root));
  roving.reset();
}

/** @param {HTMLSelectElement} select @param {number} n @param {number} value */
function fill(select, n, value) {
  if (select.options.length !== n)
    select.replaceChildren(...Array.from({ length: n }, (_, i) => new Option(String(i), String(i))));
  select.value = String(value);
}

/** @param {ForwardPlace} place @param {Given} given @param {Given | null} other */
function sourceOf({ texts, position }, { info }, other) {
  const time = info.ms === undefined ? "" : ` in ${duration(info.ms)}`;
  const beside = other ? `, compared with “${tokenLabel(texts[position - 1], "·")}” before it (grey)` : "";
  return `Recomputed from this run's tokens${time}${beside}.`;
}

// ---- numbers ---------------------------------------------------------------------------------

/** A row for each line. */
function tableOfLines() {
  const { lines, beside } = /** @type {NonNullable<typeof now>} */ (now);
  return {
    columns: ["step", "what", "shape", "tensors", "dispatches", "min", "max", "norm", "cosine to the token before"],
    rows: lines.map((line) => {
      const { key: name, shape, vectors, ops } = line;
      const values = vectors[0]?.values;
      const theirs = beside.find((one) => one.key === name)?.vectors[0]?.values;
      const { min, max, norm } = values ? extent(values) : { min: null, max: null, norm: null };
      return [
        line.name,
        line.what,
        shape.join(" × "),
        tensorsOf(line, tensors).map((tensor) => tensor.name).join(" "),
        ops.join(" "),
        min,
        max,
        norm,
        values && theirs && theirs.length === values.length ? cosine(values, theirs) : null,
      ];
    }),
  };
}

/** The numbers of the vectors of a line, or those of its tables if it has any. @param {Line} line */
function tableOfLine(line) {
  const { beside, shown } = /** @type {NonNullable<typeof now>} */ (now);
  const [part] = line.parts;
  if (typeof part === "string" || !line.vectors.length) return tableOf(part, shown);
  const theirs = beside.find((one) => one.key === line.key)?.vectors ?? [];
  const columns = [...line.vectors, ...theirs.map(({ name, values }) => ({ name: `${name}, token before`, values }))];
  const n = Math.max(...columns.map(({ values }) => values.length));
  return {
    columns: ["number", ...columns.map(({ name }) => name)],
    rows: Array.from({ length: n }, (_, i) => [i, ...columns.map(({ values }) => values[i] ?? null)]),
  };
}
