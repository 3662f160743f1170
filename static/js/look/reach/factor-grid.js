// Grid of factors of heads, attention, MLP and layers: a press switches off and on, dragging or
// keys scale. The last column shows the effect at the focused token by layer.

import { clamp, el, setText, setVars, sizeOf, targetOf } from "../../ui/dom.js";
import { percent } from "../../ui/format.js";
import { factorWords } from "../../interventions/interventions.js";
import { factorOf } from "../../interventions/intervention-wire.js";
import { RovingTabindex } from "../shared/roving.js";
import { addHead } from "../shared/table.js";

/**
 * What the page does at a place; `factor` returns its value, which may be newer than the drawn one.
 *
 * @typedef {{choose: (place: string) => void, toggle: (place: string) => void,
 *   scale: (place: string, factor: number, gesture?: symbol) => void,
 *   type: (place: string, character: string) => void,
 *   factor: (place: string) => number | null}} GridActs
 */

/**
 * @typedef {{model: ToPage.PageModelInfo, setting: Setting, chosen: string, hot: number | undefined,
 *   effect: EffectFound["byLayer"] | undefined, word: string, free: boolean}} GridDrawing
 */

/** Heights of the column names and of a row, minimum and maximum (px). */
const HEAD = 22;
const MIN_ROW = 18;
const MAX_ROW = 30;
/** Distance that starts a drag, and distance per factor of 1 (px). */
const DRAG_FROM = 4;
const PX_PER_ONE = 80;
const STEP = 0.05;
const KEY_STEP = 0.1;
/** Maximum of the sliders. */
export const MAX_SCALE = 2;
/** From this number of heads on, cells do not show their factor. */
const MANY_HEADS = 17;

const HOW =
  "Arrow keys move. Space switches off and on, plus and minus scale, a digit types a factor, " +
  "Delete resets to 1.";
/** @type {Record<string, string>} */
const PLACES = { attention: "attention", mlp: "MLP", layer: "layer" };

/** Label of a place: "layer 2, head 3", "layer 2, attention", "layer 2". @param {string} place */
export function placeName(place) {
  const [kind, where] = place.split(" ");
  const [layer, head] = where.split(".");
  if (kind === "layer") return `layer ${layer}`;
  return `layer ${layer}, ${kind === "head" ? `head ${head}` : PLACES[kind]}`;
}

/** @param {string} place */
export const placeLayer = (place) => Number(/\d+/.exec(place)?.[0]);

/** Label of a factor; null: the halves of a layer differ. @param {number | null} factor */
export const factorLabel = (factor) =>
  factor === null ? "halves differ" : factor === 1 ? "unchanged" : factorWords(factor);

/** The cell that an event is about, or null. @param {Event} event */
const cellOf = (event) =>
  /** @type {HTMLElement | null} */ (targetOf(event).closest("[data-place]"));

export class FactorGrid {
  /**
   * `on`: {choose(place), toggle(place), scale(place, factor, gesture), type(place, character),
   * factor(place)}; the last returns the current value, which may be newer than the drawn one.
   *
   * @param {HTMLElement} root
   * @param {GridActs} on
   */
  constructor(root, on) {
    this.on = on;
    this.box = root.appendChild(el("div", "rc-plate"));
    this.table = this.box.appendChild(el("table", "rc-grid"));
    this.table.setAttribute("role", "grid");
    this.table.setAttribute("aria-label", "Heads, attention, MLP and layers, the last layer first");
    this.table.setAttribute("aria-describedby", "rc-how");
    const how = root.appendChild(el("p", "vh", HOW));
    how.id = "rc-how";
    /** @type {ReturnType<typeof newRow>[]} */
    this.rows = [];
    this.shape = "";
    /** @type {unknown[]} */
    this.drawn = [];
    /** May factors be changed? */
    this.free = false;
    this.dragged = false;
    /** Name of the last column. */
    this.word = el("th", "rc-word");
    this.word.scope = "col";
    this.roving = new RovingTabindex(
      this.table,
      { next: "ArrowRight", previous: "ArrowLeft", after: "ArrowDown", before: "ArrowUp" },
      () => this.rows.map(({ cells }) => cells.map(({ node }) => node)),
    );
    this.#listen();
  }

  /**
   * `effect`: {without, with}, probabilities of the chosen token by layer, or null.
   *
   * @param {GridDrawing} drawing
   */
  draw({ model, setting, chosen, hot, effect, word, free }) {
    const shape = `${model.n_layers} ${model.n_heads}`;
    if (this.shape !== shape) this.#build(model, shape);
    this.free = free;
    const row = this.#heightOfRow(model.n_layers);
    setVars(this.table, { "--rc-row": `${row}px` });
    const of = [shape, row, setting, chosen, hot, effect, word, free];
    if (of.every((part, i) => part === this.drawn[i])) return; // tokens arrive every frame
    this.drawn = of;
    this.table.setAttribute("aria-readonly", String(!free));
    this.word.toggleAttribute("data-word", !!word);
    setText(this.word, word ? `“${word}” %` : "share %");
    this.table.toggleAttribute("data-no-effect", !effect); // its last column has no numbers
    const largest = effect ? Math.max(...effect.without, ...effect.with) : 1;
    for (const each of this.rows) this.#drawRow(each, { setting, chosen, hot, effect, largest });
  }

  /** @param {number} nLayers */
  #heightOfRow(nLayers) {
    const [, height] = sizeOf(this.box);
    return clamp(Math.floor((height - HEAD - 2) / nLayers), MIN_ROW, MAX_ROW);
  }

  /** @param {ToPage.PageModelInfo} model @param {string} shape */
  #build({ n_layers: nLayers, n_heads: nHeads }, shape) {
    this.shape = shape;
    const heads = Array.from({ length: nHeads }, (_, i) => String(i));
    this.table.replaceChildren();
    addHead(this.table, ["head", ...heads, "attention", "MLP", "layer"]).append(this.word);
    this.rows = Array.from({ length: nLayers }, (_, i) => newRow(nLayers - 1 - i, nHeads));
    this.table.createTBody().append(...this.rows.map(({ node }) => node));
    this.table.classList.toggle("small", nHeads >= MANY_HEADS);
    this.roving.reset();
  }

  /**
   * @param {ReturnType<typeof newRow>} row
   * @param {Pick<GridDrawing, "setting" | "chosen" | "hot" | "effect"> & {largest: number}} drawing
   */
  #drawRow({ layer, node, cells, bars }, { setting, chosen, hot, effect, largest }) {
    node.classList.toggle("hot", layer === hot);
    const silent = factorOf(setting, `attention ${layer}`) === 0;
    for (const { place, node: cell, words } of cells) {
      const factor = factorOf(setting, place);
      const state = stateOf(factor);
      cell.dataset.state = state;
      cell.toggleAttribute("data-moot", silent && place.startsWith("head"));
      cell.setAttribute("aria-label", `${placeName(place)}: ${factorLabel(factor)}`);
      cell.setAttribute("aria-selected", String(place === chosen));
      setVars(cell, { "--f": clamp(factor ?? 1, 0, MAX_SCALE) });
      setText(words, factor === null ? "≠" : factor === 1 ? "" : shortly(factor));
    }
    drawBars(bars, effect, layer, largest);
  }

  // ---- pointer and keys ------------------------------------------------------------------------

  #listen() {
    const { table } = this;
    table.addEventListener("focusin", (event) => {
      const { place } = targetOf(event).dataset;
      if (place) this.on.choose(place);
    });
    table.addEventListener("pointerdown", (event) => this.#grab(event));
    table.addEventListener("keydown", (event) => this.#onKey(event));
    table.addEventListener("click", (event) => {
      const place = cellOf(event)?.dataset.place;
      if (place && this.free && !this.dragged) this.on.toggle(place);
      this.dragged = false;
    });
  }

  /** Start a drag. Touch scrolls instead; it scales with the slider above. @param {PointerEvent} event */
  #grab(event) {
    const cell = cellOf(event);
    const place = cell?.dataset.place;
    this.dragged = false;
    if (!cell || !place || !this.free || event.button !== 0 || event.pointerType === "touch") return;
    const [start, from, gesture] = [event.clientX, this.on.factor(place) ?? 1, Symbol(place)];
    const move = (/** @type {PointerEvent} */ { clientX }) => {
      if (Math.abs(clientX - start) < DRAG_FROM && !this.dragged) return;
      this.dragged = true;
      this.on.scale(place, stepped(from + (clientX - start) / PX_PER_ONE, STEP), gesture);
    };
    cell.setPointerCapture(event.pointerId);
    cell.addEventListener("pointermove", move);
    const drop = () => cell.removeEventListener("pointermove", move);
    cell.addEventListener("lostpointercapture", drop, { once: true });
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const { place } = targetOf(event).dataset;
    if (!place || !this.free || event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    const by = "+=".includes(key) ? KEY_STEP : "-−".includes(key) ? -KEY_STEP : 0;
    if (key === " " || key === "Enter") this.on.toggle(place);
    else if (by) this.on.scale(place, stepped((this.on.factor(place) ?? 1) + by, STEP));
    else if (key === "Delete" || key === "Backspace") this.on.scale(place, 1);
    else if (/^[\d.,]$/.test(key)) this.on.type(place, key);
    else return;
    event.preventDefault();
    event.stopPropagation(); // the page has shortcuts for digits and letters
  }

  /** Focus a place. @param {string} place */
  focus(place) {
    this.rows.flatMap(({ cells }) => cells).find((one) => one.place === place)?.node.focus();
  }

  /**
   * Rows of the table: factors, and the effect by layer.
   *
   * @param {Setting} setting
   * @param {EffectFound["byLayer"] | undefined} effect
   */
  numbers(setting, effect) {
    return this.rows.flatMap(({ layer, cells }) =>
      cells.map(({ place }) => [
        layer,
        place.startsWith("head") ? place.replace(/.*\./, "head ") : place.replace(/ .*/, ""),
        factorOf(setting, place),
        effect?.without[layer + 1] ?? null,
        effect?.with[layer + 1] ?? null,
      ]),
    );
  }
}

/** @param {number} value @param {number} step */
const stepped = (value, step) => clamp(Math.round(value / step) * step, 0, MAX_SCALE);

/** ".5", "−2", "1.25" @param {number} factor */
const shortly = (factor) =>
  String(Number(factor.toFixed(2)))
    .replace(/^(-?)0\./, "$1.")
    .replace("-", "−");

/** @param {number | null} factor */
function stateOf(factor) {
  if (factor === null) return "mixed";
  if (factor === 1) return "";
  return factor === 0 ? "off" : factor > 1 ? "more" : "less";
}

/** @param {number} layer @param {number} nHeads */
function newRow(layer, nHeads) {
  const node = el("tr");
  const name = node.appendChild(el("th", "", `layer ${layer}`));
  name.scope = "row";
  const heads = Array.from({ length: nHeads }, (_, i) => `head ${layer}.${i}`);
  const cells = [...heads, `attention ${layer}`, `mlp ${layer}`, `layer ${layer}`].map((place) => {
    const cell = node.appendChild(el("td", `rc-cell ${place.split(" ")[0]}`));
    Object.assign(cell.dataset, { place });
    cell.tabIndex = -1;
    cell.append(el("i"));
    return { place, node: cell, words: cell.appendChild(el("b")) };
  });
  const bars = node.appendChild(el("td", "rc-effect"));
  const without = bars.appendChild(el("i", "b-out"));
  const now = bars.appendChild(el("i", "b-in"));
  return { layer, node, cells, bars: { node: bars, without, now, share: bars.appendChild(el("span")) } };
}

/**
 * Draw the effect bars, scaled to the largest probability of all layers.
 *
 * @param {ReturnType<typeof newRow>["bars"]} bars
 * @param {EffectFound["byLayer"] | undefined} effect
 * @param {number} layer
 * @param {number} largest
 */
function drawBars(bars, effect, layer, largest) {
  const without = effect?.without[layer + 1] ?? 0;
  const now = effect?.with[layer + 1] ?? 0;
  bars.without.hidden = bars.now.hidden = !effect;
  setVars(bars.without, { "--p": without / largest });
  setVars(bars.now, { "--p": now / largest });
  setText(bars.share, effect ? percent(now) : "");
  const text = `${percent(without)} per cent without, ${percent(now)} with`;
  if (effect) bars.node.setAttribute("aria-label", text);
  else bars.node.removeAttribute("aria-label");
}
