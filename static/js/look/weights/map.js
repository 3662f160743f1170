// @ts-nocheck
// Map of all weights: a column per layer, a cell per tensor, with areas by number of parameters.

import { el, setVars } from "../../ui/dom.js";
import { count, percent } from "../../ui/format.js";
import { RovingTabindex } from "../shared/roving.js";

/** Minimum share of the map for a named column; of narrower ones every n-th is named. */
const MIN_NAMED = 0.03;
const SHORT = {
  input_layernorm: "norm",
  post_attention_layernorm: "norm",
  "self_attn.q_proj": "Q",
  "self_attn.k_proj": "K",
  "self_attn.v_proj": "V",
  "self_attn.o_proj": "out",
  "mlp.gate_proj": "gate",
  "mlp.up_proj": "up",
  "mlp.down_proj": "down",
  "model.embed_tokens": "embedding",
  "model.norm": "norm",
  lm_head: "head",
};

/**
 * Return "Q" for model.layers.3.self_attn.q_proj.weight; the name itself if there is no short one.
 */
export function shortOf({ name }) {
  const module = name.replace(/^model\.layers\.\d+\./, "").replace(/\.(weight|bias)$/, "");
  return (SHORT[module] ?? module) + (name.endsWith(".bias") ? " bias" : "");
}

const KEYS = { next: "ArrowDown", previous: "ArrowUp", after: "ArrowRight", before: "ArrowLeft" };

export class WeightsMap {
  /** `onChoose(name)`: selected tensor; `onPoint(tensor | null)`: hovered tensor. */
  constructor(root, { onChoose, onPoint }) {
    this.root = root.appendChild(el("div", "wt-map"));
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "Tensors, by layer");
    this.cells = new Map();
    this.columns = [];
    this.tensors = new Map();
    this.marked = "";
    const at = ({ target }) => this.tensors.get(target.closest("button")?.dataset.name) ?? null;
    this.root.addEventListener("click", (event) => at(event) && onChoose(at(event).name));
    this.root.addEventListener("pointerover", (event) => onPoint(at(event)));
    this.root.addEventListener("pointerleave", () => onPoint(null));
    this.root.addEventListener("focusin", (event) => onPoint(at(event)));
    this.root.addEventListener("focusout", () => onPoint(null));
    this.roving = new RovingTabindex(this.root, KEYS, () => this.columns);
  }

  /** Draw the tensors of an inventory, in its order. */
  draw(tensors) {
    this.tensors = new Map(tensors.map((tensor) => [tensor.name, tensor]));
    this.cells.clear();
    this.columns = [];
    const groups = columnsOf(tensors);
    const named = Math.max(1, Math.ceil(MIN_NAMED / Math.min(1, ...layerShares(groups))));
    this.root.replaceChildren(...groups.map((group) => this.#column(group, named)));
    this.roving.reset();
    this.marked = "";
  }

  /** Highlight the selected tensor and the core sample's layer; null for none. */
  mark(name, layer) {
    if (this.marked === `${name} ${layer}`) return;
    this.marked = `${name} ${layer}`;
    for (const [other, cell] of this.cells)
      cell.setAttribute("aria-pressed", String(other === name));
    for (const column of this.root.children)
      column.classList.toggle("at", layer !== null && column.dataset.layer === String(layer));
  }

  #column({ title, layer, tensors, share }, named) {
    const tied = tensors.some((tensor) => tensor.tied_to);
    const column = el("div", share > 0 && !tied ? "wt-column" : "wt-column none");
    setVars(column, { "--w": share });
    if (layer !== null) column.dataset.layer = layer;
    const name = column.appendChild(el("span", "wt-name"));
    if (layer === null) name.append(title);
    else if (layer % named === 0) name.append(el("span", "", "layer "), String(layer));
    const cells = tensors.map((tensor) => this.#cell(tensor, tied ? 0 : tensor.share / share));
    column.append(...cells);
    this.columns.push(cells);
    return column;
  }

  #cell(tensor, height) {
    const cell = el("button", `wt-cell ${tensor.tied_to ? "tied" : tensor.kind}`);
    cell.type = "button";
    cell.dataset.name = tensor.name;
    cell.setAttribute("aria-label", spoken(tensor));
    setVars(cell, { "--h": height || 0 });
    cell.append(el("span", "", tensor.tied_to ? "head = embedding" : shortOf(tensor)));
    this.cells.set(tensor.name, cell);
    return cell;
  }
}

const layerShares = (groups) => groups.filter((g) => g.layer !== null).map((g) => g.share);

function spoken({ name, parameters, share, tied_to: tied }) {
  return tied
    ? `${name}: tied to ${tied}`
    : `${name}: ${count(parameters)} parameters, ${percent(share)} %`;
}

/**
 * Group into embedding, layers, head with final norm, and unused: {title, layer, tensors, share}.
 */
function columnsOf(tensors) {
  const columns = new Map();
  for (const tensor of tensors) {
    const { kind, layer } = tensor;
    const title =
      layer === null ? { norm: "head", embedding: "embed" }[kind] ?? kind : `layer ${layer}`;
    if (!columns.has(title)) columns.set(title, { title, layer, tensors: [], share: 0 });
    const column = columns.get(title);
    column.tensors.push(tensor);
    column.share += tensor.share;
  }
  return [...columns.values()];
}
