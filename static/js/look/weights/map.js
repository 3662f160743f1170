// Map of all weights: a column per layer, a cell per tensor, with areas by number of parameters.

import { el, setVars, targetOf } from "../../ui/dom.js";
import { count, percent } from "../../ui/format.js";
import { RovingTabindex } from "../shared/roving.js";

/** @typedef {{title: string, layer: number | null, tensors: Answers.TensorEntry[], share: number}} Group */

/** Minimum share of the map for a named column; of narrower ones every n-th is named. */
const MIN_NAMED = 0.03;

/** What the cell of a tied output head says. */
const TIED = "W_unembed = W_E";

/** "self_attn.q_norm" of model.layers.3.self_attn.q_norm.weight. @param {string} name */
const moduleOf = (name) =>
  name.replace(/^(transformer\.)?(model\.layers|h)\.\d+\.|^transformer\./, "").replace(/\.(weight|bias)$/, "");

/** Name of a tensor in its cell: that of articles, or of its module. @param {Answers.TensorEntry} tensor */
const shortOf = ({ article, name }) => article || moduleOf(name);

/** Columns of tensors outside the layers, by kind. @type {Map<string, string>} */
const OUTSIDE = new Map([["norm", "head"], ["embedding", "embed"]]);
const KEYS = { next: "ArrowDown", previous: "ArrowUp", after: "ArrowRight", before: "ArrowLeft" };

export class WeightsMap {
  /**
   * `onChoose(name)`: selected tensor; `onPoint(tensor | null)`: hovered tensor.
   *
   * @param {HTMLElement} root
   * @param {{onChoose: (name: string) => void, onPoint: (tensor: Answers.TensorEntry | null) => void}} on
   */
  constructor(root, { onChoose, onPoint }) {
    this.root = root.appendChild(el("div", "wt-map"));
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "Tensors, by layer");
    /** @type {Map<string, HTMLElement>} */
    this.cells = new Map();
    /** @type {HTMLElement[][]} */
    this.columns = [];
    /** @type {{column: HTMLElement, layer: number | null}[]} */
    this.groups = [];
    /** @type {Map<string | undefined, Answers.TensorEntry>} */
    this.tensors = new Map();
    this.marked = "";
    /** @param {Event} event */
    const at = (event) =>
      this.tensors.get(targetOf(event).closest("button")?.dataset.name) ?? null;
    this.root.addEventListener("click", (event) => {
      const tensor = at(event);
      if (tensor) onChoose(tensor.name);
    });
    this.root.addEventListener("pointerover", (event) => onPoint(at(event)));
    this.root.addEventListener("pointerleave", () => onPoint(null));
    this.root.addEventListener("focusin", (event) => onPoint(at(event)));
    this.root.addEventListener("focusout", () => onPoint(null));
    this.roving = new RovingTabindex(this.root, KEYS, () => this.columns);
  }

  /** Draw the tensors of an inventory, in its order. @param {Answers.TensorEntry[]} tensors */
  draw(tensors) {
    this.tensors = new Map(tensors.map((tensor) => [tensor.name, tensor]));
    this.cells.clear();
    this.columns = [];
    const groups = columnsOf(tensors);
    const named = Math.max(1, Math.ceil(MIN_NAMED / Math.min(1, ...layerShares(groups))));
    this.groups = groups.map((group) => ({ column: this.#column(group, named), layer: group.layer }));
    this.root.replaceChildren(...this.groups.map(({ column }) => column));
    this.roving.reset();
    this.marked = "";
  }

  /**
   * Highlight the selected tensor and the core sample's layer; null for none.
   *
   * @param {string | null} name
   * @param {number | null} layer
   */
  mark(name, layer) {
    if (this.marked === `${name} ${layer}`) return;
    this.marked = `${name} ${layer}`;
    for (const [other, cell] of this.cells)
      cell.setAttribute("aria-pressed", String(other === name));
    for (const { column, layer: own } of this.groups)
      column.classList.toggle("at", layer !== null && own === layer);
  }

  /** @param {Group} group @param {number} named */
  #column({ title, layer, tensors, share }, named) {
    const tied = tensors.some((tensor) => tensor.tied_to);
    const column = el("div", share > 0 && !tied ? "wt-column" : "wt-column none");
    setVars(column, { "--w": share });
    if (layer !== null) column.dataset.layer = String(layer);
    const name = column.appendChild(el("span", "wt-name"));
    if (layer === null) name.append(title);
    else if (layer % named === 0) name.append(el("span", "", "layer "), String(layer));
    name.classList.toggle("wt-between", named > 1 && (layer ?? 0) % (2 * named) !== 0);
    const cells = tensors.map((tensor) => this.#cell(tensor, tied ? 0 : tensor.share / share));
    column.append(...cells);
    this.columns.push(cells);
    return column;
  }

  /** @param {Answers.TensorEntry} tensor @param {number} height */
  #cell(tensor, height) {
    const cell = el("button", `wt-cell ${tensor.tied_to ? "tied" : tensor.kind}`);
    cell.type = "button";
    cell.dataset.name = tensor.name;
    cell.setAttribute("aria-label", spoken(tensor));
    setVars(cell, { "--h": height || 0 });
    cell.append(labelOf(tensor));
    this.cells.set(tensor.name, cell);
    return cell;
  }
}

/** The name in a cell; where there is little room, “gate” for W_gate (weights.css). @param {Answers.TensorEntry} tensor */
function labelOf(tensor) {
  const name = tensor.tied_to ? TIED : shortOf(tensor);
  const label = el("span");
  const [, letter = "", rest = name] = /^(W_)(\w+)$/.exec(name) ?? [];
  if (letter) label.append(el("i", "", letter));
  label.append(rest);
  return label;
}

/** @param {Group[]} groups */
const layerShares = (groups) => groups.filter((g) => g.layer !== null).map((g) => g.share);

/** @param {Answers.TensorEntry} tensor */
function spoken({ name, article, parameters, share, tied_to: tied }) {
  if (tied) return `${TIED}, ${name}: tied to ${tied}`;
  return `${article && `${article}, `}${name}: ${count(parameters)} parameters, ${percent(share)} %`;
}

/**
 * Group into embedding, layers, head with final norm, and unused: {title, layer, tensors, share}.
 *
 * @param {Answers.TensorEntry[]} tensors
 */
function columnsOf(tensors) {
  /** @type {Map<string, Group>} */
  const columns = new Map();
  for (const tensor of tensors) {
    const { kind, layer } = tensor;
    const title = layer === null ? (OUTSIDE.get(kind) ?? kind) : `layer ${layer}`;
    const column = columns.get(title) ?? { title, layer, tensors: [], share: 0 };
    columns.set(title, column);
    column.tensors.push(tensor);
    column.share += tensor.share;
  }
  return [...columns.values()];
}
