// What is measured, as chosen beside the prompt: the predicted tokens, what is done to the prompt, to which
// parts of it, and where attention is masked.

import { el } from "../../ui/dom.js";
import { drawSegmented, newSegmented } from "../../ui/segmented.js";
import { widthsOf } from "./windows.js";

/** @typedef {"token" | "answer" | "typed"} TargetKind */
/** @typedef {import("./measure.js").Change} Change */
/** @typedef {import("./units.js").UnitKind} UnitKind */

/** @type {[TargetKind, string][]} */
const TARGETS = [
  ["token", "This token"],
  ["answer", "Whole answer"],
  ["typed", "Typed"],
];
/** @type {[Change, string][]} */
const CHANGES = [
  ["out", "Left out"],
  ["mask", "Masked"],
  ["swap", "Swapped"],
];
/** @type {[UnitKind, string][]} */
const UNITS = [
  ["words", "Words"],
  ["tokens", "Tokens"],
  ["paragraphs", "Paragraphs"],
  ["messages", "Messages"],
  ["selection", "Selection"],
];
/** In place of a number of layers: attention is masked in one head at a time. */
const HEAD = "head";

export class Choices {
  /** @type {TargetKind} */
  target = "token";
  /** The answer that the user typed. */
  typed = "";
  /** @type {Change} */
  change = "out";
  /** @type {UnitKind} */
  #unit = "words";
  /** Layers of a window, or `HEAD`; "": the widest of the model. */
  #width = "";
  #nLayers = 0;

  /** @param {() => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    this.input = el("input", "ab-typed");
    this.units = this.#newChoice("Part", "ab-unit", UNITS, this.#unit, (value) => (this.#unit = value));
    this.units.classList.add("ab-units");
    this.widths = el("div", "ab-widths");
    Object.assign(this.input, { type: "text", placeholder: "An answer, such as Paris", maxLength: 400 });
    this.input.setAttribute("aria-label", "Answer to measure");
    this.input.addEventListener("change", () => {
      this.typed = this.input.value.trimEnd();
      onChange();
    });
    this.nodes = [
      this.#newChoice("What", "ab-target", TARGETS, this.target, (value) => (this.target = value)),
      this.input,
      this.#newChoice("Change", "ab-change", CHANGES, this.change, (value) => (this.change = value)),
      this.units,
      this.widths,
    ];
  }

  /** Is attention masked in one head at a time? It is to a selection, which has a map of its own. */
  get isByHead() {
    return this.change === "mask" && this.#width === HEAD;
  }

  /** @returns {UnitKind} */
  get unit() {
    if (this.isByHead) return "selection";
    return this.change === "swap" && this.#unit === "selection" ? "words" : this.#unit;
  }

  /** Layers of a window in which attention is masked. @param {number} nLayers */
  widthFor(nLayers) {
    if (this.isByHead) return 1;
    const widths = widthsOf(nLayers);
    return widths.find((width) => String(width) === this.#width) ?? widths.at(-1) ?? 1;
  }

  /** Show what of it there is to choose. @param {number} nLayers */
  draw(nLayers) {
    this.input.hidden = this.target !== "typed";
    this.widths.hidden = this.change !== "mask";
    const takes = (/** @type {string} */ unit) => unit === "selection" ? this.change !== "swap" : !this.isByHead;
    drawSegmented(this.units, this.unit, (unit) => !takes(unit));
    if (nLayers !== this.#nLayers) this.#makeWidths(nLayers);
  }

  /** @param {number} nLayers */
  #makeWidths(nLayers) {
    this.#nLayers = nLayers;
    /** @type {[string, string][]} */
    const options = widthsOf(nLayers).map((width) => [String(width), width === 1 ? "1 layer" : `${width} layers`]);
    const value = this.isByHead ? HEAD : String(this.widthFor(nLayers));
    options.push([HEAD, "1 head"]);
    this.widths.replaceChildren(
      this.#newChoice("Where attention is masked", "ab-width", options, value, (width) => (this.#width = width)),
    );
  }

  /**
   * @template {string} Value
   * @param {string} legend
   * @param {string} name
   * @param {[value: Value, label: string][]} options
   * @param {Value} value
   * @param {(value: Value) => void} choose
   */
  #newChoice(legend, name, options, value, choose) {
    const onChange = (/** @type {Value} */ chosen) => {
      choose(chosen);
      this.onChange();
    };
    return newSegmented({ legend, name, options, value, onChange });
  }
}
