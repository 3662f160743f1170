// Weights instrument: every tensor by size, the values of one, and the rotary positions.

import { el } from "../../ui/dom.js";
import { count } from "../../ui/format.js";
import { drawSegmented, newSegmented } from "../../ui/segmented.js";
import { changed } from "../../state.js";
import { askInventory, askSummary, whyNoSummaries } from "./data.js";
import { WeightsDigest } from "./digest.js";
import { WeightsKinds } from "./kinds.js";
import { WeightsMap } from "./map.js";
import { Rotary, ropeScale } from "./rotary.js";
import { binsOf, WeightsValues } from "./values.js";

/** @typedef {"tensors" | "values" | "rotary"} PaneName */

/** @type {[name: PaneName, text: string][]} */
const PANES = [
  ["tensors", "All tensors"],
  ["values", "One tensor"],
  ["rotary", "Rotary positions"],
];

/** @type {WeightsMap} */
let map;
/** @type {HTMLElement} */
let readout;
/** @type {HTMLFieldSetElement} */
let choices;
/** @type {{tensors: WeightsKinds, values: WeightsValues, rotary: Rotary}} */
let panes;
/** Below the kinds of tensors. @type {WeightsDigest} */
let digest;
/** @type {PaneName} */
let pane = "tensors";
/** @type {string | null} */
let chosen = null;
/**
 * What was drawn last, {inventory, summary}, and the key of its model and device.
 *
 * @type {{inventory: Answers.Inventory, summary: Answers.TensorSummary | null}}
 */
let now;
/** @type {string | null} */
let known = null;

/** @type {Instrument} */
export const weights = {
  needs: "nothing",
  asks: true,

  setUp(root) {
    const left = root.appendChild(el("div", "column wt-left"));
    map = new WeightsMap(left, { onChoose: choose, onPoint: say });
    readout = left.appendChild(el("p", "readout wt-readout"));
    const right = root.appendChild(el("div", "column wt-right"));
    right.append(buildChoices());
    panes = {
      tensors: new WeightsKinds(right),
      values: new WeightsValues(right),
      rotary: new Rotary(right),
    };
    digest = new WeightsDigest(panes.tensors.root);
  },

  show({ hello, row }) {
    const id = idOf(hello);
    if (known !== id) begin(id);
    const inventory = askInventory(hello.model.name);
    if (inventory instanceof Promise) return inventory.then((found) => draw(found, null, row));
    const wanted = pane === "values" && !whyNoSummaries();
    const summary = wanted ? summaryOf(inventory, hello.model.name) : null;
    if (!(summary instanceof Promise)) return draw(inventory, summary, row);
    draw(inventory, null, row);
    return summary.then((found) => draw(inventory, found, row));
  },

  table: () => TABLES[pane](),
};

/** @param {ToPage.Hello} hello */
const idOf = ({ model, device }) => `${model.name} ${model.dtype} ${device.name}`;

/** Show the values of a tensor, also before the instrument was drawn. @param {ToPage.Hello} hello @param {string} name */
export function showTensor(hello, name) {
  if (known !== idOf(hello)) begin(idOf(hello));
  choose(name);
}

/** Start over for another model, device or storage type. @param {string} id */
function begin(id) {
  digest?.clear();
  known = id;
  chosen = null;
  pane = "tensors";
}

/**
 * Return the summary of the selected tensor, or of the one it is tied to.
 *
 * @param {Answers.Inventory} inventory
 * @param {string} model
 */
function summaryOf({ tensors }, model) {
  const tensor = tensors.find(({ name }) => name === chosen);
  return tensor ? askSummary(model, tensor.tied_to ?? tensor.name) : null;
}

/** @param {string} name */
function choose(name) {
  chosen = name;
  pane = "values";
  changed("look");
}

function buildChoices() {
  choices = newSegmented({
    legend: "View",
    name: "look-weights",
    options: PANES,
    onChange(value) {
      pane = value;
      changed("look");
    },
  });
  return choices;
}

/**
 * @param {Answers.Inventory} inventory
 * @param {Answers.TensorSummary | null} summary
 * @param {Row | null} row
 */
function draw(inventory, summary, row) {
  if (now?.inventory !== inventory) map.draw(inventory.tensors);
  now = { inventory, summary };
  drawSegmented(choices, pane, (value) => value === "values" && !chosen);
  for (const [name, { root }] of Object.entries(panes)) root.hidden = name !== pane;
  map.mark(chosen, row?.layer ?? null);
  say(null);
  if (pane === "tensors") panes.tensors.draw(inventory);
  digest.draw();
  const tensor = tensorOf(chosen);
  if (pane === "values" && tensor) panes.values.draw(tensor, summary, whyNoSummaries());
  if (pane === "rotary") panes.rotary.draw(inventory.rope);
  return pane === "values" && !summary ? SOURCES.tensors : SOURCES[pane];
}

const SOURCES = {
  tensors: "From the headers of the model’s files. Area: parameters; thin cells are drawn thicker.",
  values: "Read from the model’s file, as saved.",
  rotary: "Computed from the model’s config.",
};

/** @param {string | null} name */
const tensorOf = (name) => now.inventory.tensors.find((tensor) => tensor.name === name);

/**
 * Describe the hovered tensor, else the selected one, below the map.
 *
 * @param {Answers.TensorEntry | null} tensor
 */
function say(tensor) {
  const shown = tensor ?? (chosen && now ? tensorOf(chosen) : null);
  readout.textContent = shown ? line(shown) : " ";
}

/** @param {Answers.TensorEntry} tensor */
function line({ name, article, shape, parameters, tied_to: tied }) {
  if (tied) return `${name} = ${tied}`;
  return `${article}  ${name}  ${shape.join(" × ")}  ${count(parameters)} parameters`;
}

// ---- tables ----------------------------------------------------------------------------------

/** @param {string} name */
const whole = (name) => ({ name, format: count });
/** @type {[column: Column, value: (tensor: Answers.TensorEntry) => unknown][]} */
const TENSOR_COLUMNS = [
  ["tensor", ({ name }) => name],
  ["in articles", ({ article }) => article],
  ["kind", ({ kind }) => kind],
  [whole("layer"), ({ layer }) => layer],
  ["shape", (tensor) => tensor.shape.join(" × ")],
  ["saved as", ({ dtype }) => dtype],
  [whole("bytes in the file"), (tensor) => tensor.n_bytes],
  [whole("parameters"), ({ parameters }) => parameters],
  ["share", ({ share }) => share],
  ["on the device as", (tensor) => tensor.device_dtype],
  [whole("bytes on the device"), (tensor) => tensor.device_bytes],
  [whole("bytes read per token"), (tensor) => tensor.token_bytes],
  ["read by", (tensor) => tensor.read_by.join(", ")],
  ["tied to", (tensor) => tensor.tied_to],
];

/** @type {Record<PaneName, () => Numbers>} */
const TABLES = {
  tensors: () => ({
    columns: TENSOR_COLUMNS.map(([column]) => column),
    rows: now.inventory.tensors.map((tensor) => TENSOR_COLUMNS.map(([, value]) => value(tensor))),
  }),
  values: () => ({ columns: ["from", "to", whole("values")], rows: now.summary ? binsOf(now.summary) : [] }),
  rotary: () => {
    const { rope } = now.inventory;
    return {
      columns: [
        whole("pair"),
        "radians per token",
        "tokens per turn",
        "unscaled tokens per turn",
        "scaled by",
      ],
      rows: rope.wavelength.map((tokens, i) => [
        i,
        rope.inv_freq[i],
        tokens,
        rope.unscaled[i],
        ropeScale(rope, i),
      ]),
    };
  },
};
