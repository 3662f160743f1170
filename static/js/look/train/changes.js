// "What LoRA changed": norm and singular values of ΔW = (α / r) · B A of each matrix, for a loaded adapter.

import { ask } from "../../net/ask.js";
import { changed } from "../../state.js";
import { el, setText } from "../../ui/dom.js";
import { figure } from "../../ui/format.js";
import { Missing } from "../shared/context.js";
import { addRow, clearRows, newTable, shareBar } from "../shared/table.js";
import { drawLayerGrid } from "./layer-grid.js";

/** @typedef {Answers.LoraChange} LoraChange */

const SOURCE = "Computed from the adapter’s files: norms and singular values of α / r · B A, at strength 1.";
const picker = el("select");
const grid = el("div", "tr-matrices");
const words = el("p", "sub");
const values = newTable("tr-values", "Singular values", ["", "singular value", ""]);
/** @type {{key: string, changes: LoraChange[]}} */
let shown = { key: "", changes: [] };

/** @type {InstrumentView<Focus>} */
export const changesView = {
  name: "changes",
  label: "What LoRA changed",

  setUp(root) {
    const bar = el("label", "controls", "Adapter ");
    bar.append(picker);
    picker.addEventListener("change", () => changed("look"));
    const side = el("div", "column");
    side.append(words, values);
    root.append(bar, grid, side);
  },

  async show({ hello }) {
    const names = hello.model.loras?.map(({ name }) => name) ?? [];
    if (!names.length) throw new Missing("No adapter is loaded. Train one, or start the server with --lora.");
    if (String([...picker.options].map(({ value }) => value)) !== String(names))
      picker.replaceChildren(...names.map((name) => Object.assign(el("option", "", name), { value: name })));
    const key = `${hello.model.name} ${picker.value} ${JSON.stringify(hello.model.loras)}`;
    if (key !== shown.key) {
      const { changes } = await ask(`api/loras/${encodeURIComponent(picker.value)}`);
      shown = { key, changes };
      draw(changes);
    }
    return SOURCE;
  },

  table: () => ({
    columns: ["matrix", "layer", "norm of ΔW", "singular values"],
    rows: shown.changes.map(({ module, layer, norm, singular_values: all }) => [module, layer, norm, all.join(" ")]),
  }),
};

/** @param {LoraChange[]} changes */
function draw(changes) {
  const numbers = changes.map((change) => ({ ...change, value: change.norm }));
  drawLayerGrid(grid, "Norm of ΔW by layer and matrix", numbers, (chosen) => {
    const change = changes.find(({ layer, name }) => layer === chosen.layer && name === chosen.name);
    if (change) drawValues(change);
  });
  const largest = changes.reduce((most, change) => (change.norm > most.norm ? change : most));
  drawValues(largest);
}

/** @param {LoraChange} change */
function drawValues({ module, norm, singular_values: all }) {
  setText(words, `${module}: norm ${figure(norm)}, rank ${all.length} at most`);
  clearRows(values);
  all.forEach((value, i) => addRow(values, [`σ${i + 1}`, figure(value), shareBar(value / (all[0] || 1))]));
}
