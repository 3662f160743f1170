// Heads, attention, MLP and whole layers as a grid of switches: a press switches off and on, a drag
// or the keyboard scales. The last column has what came of it at the focused token, layer by layer.

import { clamp, el, setText, setVars, sizeOf } from "../dom.js";
import { percent } from "../format.js";
import { factorWords } from "../reach.js";
import { factorOf } from "../reachsetting.js";
import { Roving } from "./roving.js";

/** Heights of the column names and of a row, at least and at most; px. */
const HEAD = 22;
const LEAST_ROW = 18;
const MOST_ROW = 30;
/** A pointer that moved so far drags; so many px are a factor of 1, in steps. */
const DRAG_FROM = 4;
const PX_PER_ONE = 80;
const STEP = 0.05;
const KEY_STEP = 0.1;
/** What a slider reaches. */
export const MOST_SCALE = 2;
/** From so many heads on a cell has no room for its factor. */
const MANY_HEADS = 17;

const HOW =
  "Arrows move. Space switches off and on, plus and minus scale, a digit types a factor, " +
  "Delete leaves alone.";
const PLACES = { attention: "attention", mlp: "MLP", layer: "layer" };

/** "layer 2, head 3", "layer 2, attention", "layer 2": what a place is called. */
export function nameOfPlace(place) {
  const [kind, where] = place.split(" ");
  const [layer, head] = where.split(".");
  if (kind === "layer") return `layer ${layer}`;
  return `layer ${layer}, ${kind === "head" ? `head ${head}` : PLACES[kind]}`;
}

export const layerOfPlace = (place) => Number(/\d+/.exec(place)[0]);

/** What a factor is called; null: both halves of a layer have another. */
export const sayFactor = (factor) =>
  factor === null ? "halves differ" : factor === 1 ? "left alone" : factorWords(factor);

export class ReachGrid {
  /**
   * `on`: {choose(place), toggle(place), scale(place, factor, gesture), type(place, character),
   * factor(place)}; the last is newer than what was drawn.
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
    this.rows = [];
    this.shape = "";
    this.drawn = [];
    this.roving = new Roving(
      this.table,
      { next: "ArrowRight", previous: "ArrowLeft", after: "ArrowDown", before: "ArrowUp" },
      () => this.rows.map(({ cells }) => cells.map(({ node }) => node)),
    );
    this.#listen();
  }

  /** `effect`: {without, with}, shares of the written token by layer, or null. */
  draw({ model, setting, chosen, hot, effect, word, free }) {
    const shape = `${model.n_layers} ${model.n_heads}`;
    if (this.shape !== shape) this.#build(model, shape);
    this.setting = setting;
    this.free = free;
    const row = this.#heightOfRow(model.n_layers);
    setVars(this.table, { "--rc-row": `${row}px` });
    const of = [shape, row, setting, chosen, hot, effect, word, free];
    if (of.every((part, i) => part === this.drawn[i])) return; // tokens come sixty times a second
    this.drawn = of;
    this.table.setAttribute("aria-readonly", String(!free));
    this.word.toggleAttribute("data-word", !!word);
    setText(this.word, word ? `“${word}” %` : "share %");
    const most = effect ? Math.max(...effect.without, ...effect.with) : 1;
    for (const each of this.rows) this.#drawRow(each, { chosen, hot, effect, most });
  }

  #heightOfRow(nLayers) {
    const [, height] = sizeOf(this.box);
    return clamp(Math.floor((height - HEAD - 2) / nLayers), LEAST_ROW, MOST_ROW);
  }

  #build({ n_layers: nLayers, n_heads: nHeads }, shape) {
    this.shape = shape;
    const head = el("tr");
    const heads = Array.from({ length: nHeads }, (_, i) => String(i));
    for (const name of ["head", ...heads, "attention", "MLP", "layer", "share %"]) {
      const cell = head.appendChild(el("th", "", name));
      cell.scope = "col";
    }
    this.word = head.lastChild;
    this.word.className = "rc-word";
    const section = el("thead");
    section.append(head);
    this.rows = Array.from({ length: nLayers }, (_, i) => newRow(nLayers - 1 - i, nHeads));
    const body = el("tbody");
    body.append(...this.rows.map(({ node }) => node));
    this.table.replaceChildren(section, body);
    this.table.classList.toggle("small", nHeads >= MANY_HEADS);
    this.roving.reset();
  }

  #drawRow({ layer, node, cells, bars }, { chosen, hot, effect, most }) {
    node.classList.toggle("hot", layer === hot);
    const silent = factorOf(this.setting, `attention ${layer}`) === 0;
    for (const { place, node: cell, words } of cells) {
      const factor = factorOf(this.setting, place);
      const state = stateOf(factor);
      cell.dataset.state = state;
      cell.toggleAttribute("data-moot", silent && place.startsWith("head"));
      cell.setAttribute("aria-label", `${nameOfPlace(place)}: ${sayFactor(factor)}`);
      cell.setAttribute("aria-selected", String(place === chosen));
      setVars(cell, { "--f": clamp(factor ?? 1, 0, MOST_SCALE) });
      setText(words, state === "" ? "" : state === "mixed" ? "≠" : shortly(factor));
    }
    drawBars(bars, effect, layer, most);
  }

  // ---- by hand ---------------------------------------------------------------------------------

  #listen() {
    const { table } = this;
    table.addEventListener("focusin", ({ target }) => {
      const place = target.dataset.place;
      if (place) this.on.choose(place);
    });
    table.addEventListener("pointerdown", (event) => this.#grab(event));
    table.addEventListener("keydown", (event) => this.#onKey(event));
    table.addEventListener("click", ({ target }) => {
      const cell = target.closest("[data-place]");
      if (cell && this.free && !this.dragged) this.on.toggle(cell.dataset.place);
      this.dragged = false;
    });
  }

  /** A finger scrolls; what it touched is scaled by the slider above. */
  #grab(event) {
    const cell = event.target.closest("[data-place]");
    this.dragged = false;
    if (!cell || !this.free || event.button !== 0 || event.pointerType === "touch") return;
    const { place } = cell.dataset;
    const [start, from, gesture] = [event.clientX, this.on.factor(place) ?? 1, Symbol(place)];
    const move = ({ clientX }) => {
      if (Math.abs(clientX - start) < DRAG_FROM && !this.dragged) return;
      this.dragged = true;
      this.on.scale(place, stepped(from + (clientX - start) / PX_PER_ONE, STEP), gesture);
    };
    cell.setPointerCapture(event.pointerId);
    cell.addEventListener("pointermove", move);
    const drop = () => cell.removeEventListener("pointermove", move);
    cell.addEventListener("lostpointercapture", drop, { once: true });
  }

  #onKey(event) {
    const { place } = event.target.dataset;
    if (!place || !this.free || event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    const by = { "+": KEY_STEP, "=": KEY_STEP, "-": -KEY_STEP, "−": -KEY_STEP }[key];
    if (key === " " || key === "Enter") this.on.toggle(place);
    else if (by) this.on.scale(place, stepped((this.on.factor(place) ?? 1) + by, STEP));
    else if (key === "Delete" || key === "Backspace") this.on.scale(place, 1);
    else if (/^[\d.,]$/.test(key)) this.on.type(place, key);
    else return;
    event.preventDefault();
    event.stopPropagation(); // digits and letters mean other things to the page
  }

  /** Put the keyboard on a place. */
  focus(place) {
    this.table.querySelector(`[data-place="${place}"]`)?.focus();
  }

  /** Places that are changed, with what came of each layer: rows of a table. */
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

const stepped = (value, step) => clamp(Math.round(value / step) * step, 0, MOST_SCALE);

/** ".5", "−2", "1.25" */
const shortly = (factor) =>
  String(Number(factor.toFixed(2)))
    .replace(/^(-?)0\./, "$1.")
    .replace("-", "−");

function stateOf(factor) {
  if (factor === null) return "mixed";
  if (factor === 1) return "";
  return factor === 0 ? "off" : factor > 1 ? "more" : "less";
}

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
  const bars = node.appendChild(el("td", "rc-came"));
  bars.append(el("i", "b-out"), el("i", "b-in"), el("span"));
  return { layer, node, cells, bars };
}

/** The longest bar is the largest share of all layers, both ways. */
function drawBars(bars, effect, layer, most) {
  const [out, inner, words] = bars.children;
  const without = effect?.without[layer + 1] ?? 0;
  const now = effect?.with[layer + 1] ?? 0;
  out.hidden = inner.hidden = !effect;
  setVars(out, { "--p": without / most });
  setVars(inner, { "--p": now / most });
  setText(words, effect ? percent(now) : "");
  const said = `${percent(without)} per cent without, ${percent(now)} with`;
  if (effect) bars.setAttribute("aria-label", said);
  else bars.removeAttribute("aria-label");
}
