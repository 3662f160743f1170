// A matrix of attention with its name and the choice of a layer.

import { changed } from "../../state.js";
import { el, setText } from "../../ui/dom.js";
import { percent, plural, tokenLabel } from "../../ui/format.js";
import { AttentionMatrix } from "./matrix.js";
import { mayAttend, weightsOf } from "./readings.js";

/** @typedef {import("./readings.js").Reading} Reading */
/** @typedef {import("./matrix.js").Pair} Pair */

export class Figure {
  /** @type {Reading | null} */
  reading = null;
  /** Layer that is shown; null: the mean of all. @type {number | null} */
  layer = null;
  /** Pair that is pointed at. @type {Pair | null} */
  pair = null;

  /**
   * `id`: one word, of this figure alone; `name`: in its title; `label`: for screen readers; `look`: called when
   * another pair is pointed at.
   *
   * @param {{id: string, name: string, label: string, look: () => void}} parts
   */
  constructor({ id, name, label, look }) {
    this.name = name;
    this.node = el("section", "mk-figure");
    this.head = this.node.appendChild(el("div", "mk-head"));
    this.title = this.head.appendChild(el("h3"));
    this.choice = this.head.appendChild(el("select"));
    this.choice.setAttribute("aria-label", `Layer of the ${name.toLowerCase()}`);
    this.choice.addEventListener("change", () => {
      this.layer = this.choice.value === "" ? null : Number(this.choice.value);
      changed("look");
    });
    this.matrix = new AttentionMatrix(id, label, (pair) => {
      this.pair = pair;
      look();
    });
    this.node.append(this.matrix.node);
  }

  /** @param {Reading | null} reading */
  set(reading) {
    this.reading = reading;
    this.layer = this.pair = null;
    const layers = [...(reading?.weights.keys() ?? [])];
    const options = [new Option("all layers", ""), ...layers.map((i) => new Option(`layer ${i}`, String(i)))];
    this.choice.replaceChildren(...options);
  }

  /** `title`: after the name, "" for none. @param {boolean} isMask @param {string} title */
  draw(isMask, title = "") {
    const { reading, pair, layer } = this;
    setText(this.title, reading && title ? `${this.name}: ${title}` : this.name);
    this.node.hidden = !reading;
    this.choice.hidden = isMask;
    if (reading) this.matrix.draw(reading, { isMask, layer, pair, words: this.words() });
  }

  /** The pair that is pointed at. */
  words() {
    const { reading, pair, layer } = this;
    if (!reading || !pair) return "";
    const from = `“${tokenLabel(reading.tokens[pair.from], "·")}”`;
    const to = `“${tokenLabel(reading.keys[pair.to], "·")}”`;
    const why = pair.to > pair.from ? "comes after it" : "is outside its window";
    if (!mayAttend(reading, pair.from, pair.to)) return `${from} may not attend to ${to}, which ${why}.`;
    const weight = weightsOf(reading, layer)[pair.from * reading.keys.length + pair.to];
    const where = layer === null ? plural(reading.weights.length, "layer") : `layer ${layer}`;
    const heads = reading.head === null ? `mean of ${plural(reading.nHeads, "head")}` : `head ${reading.head}`;
    const attends = reading.kind === "cross" ? `To write ${from}, it attends to` : `${from} attends to`;
    return `${attends} ${to} with ${percent(weight)} %, ${heads} in ${where}.`;
  }
}

/** Rows of a figure’s numbers: its reading, from, to, may attend, weight. @param {Figure} figure @param {string} name */
export function rowsOf({ reading, layer }, name) {
  if (!reading) return [];
  const { tokens, keys } = reading;
  const weights = weightsOf(reading, layer);
  return tokens.flatMap((from, i) =>
    keys.map((to, j) => [name, from, to, mayAttend(reading, i, j) ? "yes" : "no", weights[i * keys.length + j]]),
  );
}
