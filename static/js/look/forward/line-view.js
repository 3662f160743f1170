// One line of the forward pass: a button with a small strip, and below it, when open, the vectors with
// their tensors and dispatches.

import { el, fitCanvas, newButton, setAttr, setText } from "../../ui/dom.js";
import { bytes } from "../../ui/format.js";
import { drawPart } from "./parts.js";
import { drawBars, Strip } from "./strip.js";
import { cosine, extent, number } from "./vectors.js";

/** @typedef {import("./lines.js").Line} Line */
/** @typedef {import("./lines.js").TensorEntry} TensorEntry */
/** @typedef {{label: string, op: string, n_bytes: number | null}} DispatchEntry */
/**
 * @typedef {{tensors: TensorEntry[] | null, dispatches: DispatchEntry[], beside: Line | null,
 *   shown: import("./parts.js").Shown, open: boolean}} Around
 */

const INSIDE =
  "The dispatch keeps these numbers in registers; here they were computed separately, from the same weights and inputs.";

export class LineView {
  /** @param {Line} line @param {() => void} onToggle */
  constructor({ key }, onToggle) {
    this.root = el("li", "fw-line");
    this.root.dataset.line = key;
    this.button = newButton("", onToggle, "fw-head");
    this.button.setAttribute("aria-controls", `forward-${key}`);
    this.name = this.button.appendChild(el("b"));
    this.what = this.button.appendChild(el("span", "ellipsis fw-what"));
    this.canvas = this.button.appendChild(el("canvas", "fw-mini"));
    this.canvas.setAttribute("aria-hidden", "true");
    this.figures = this.button.appendChild(el("span", "fw-figures"));
    this.body = el("div", "fw-body");
    this.body.id = `forward-${key}`;
    this.strips = this.body.appendChild(el("div", "fw-strips"));
    this.facts = this.body.appendChild(el("ul", "fw-facts"));
    this.parts = this.body.appendChild(el("div", "fw-parts"));
    this.root.append(this.button, this.body);
    /** @type {Strip[]} */
    this.drawn = [];
  }

  /** @param {Line} line @param {Around} around */
  draw(line, around) {
    const { open, beside } = around;
    setText(this.name, line.name);
    setText(this.what, line.what);
    setAttr(this.button, "aria-expanded", String(open));
    const [first] = line.vectors;
    setText(this.figures, first ? figuresOf(line, beside) : "");
    this.canvas.hidden = !first;
    this.body.hidden = !open;
    if (first) this.#drawMini(first.values);
    if (open) this.#drawBody(line, around);
  }

  /** @param {import("./vectors.js").Vector} values */
  #drawMini(values) {
    const [context, width, height] = fitCanvas(this.canvas);
    const { min, max } = extent(values);
    const most = Math.max(-min, max);
    drawBars(context, values, { top: 0, width, height, most, colour: "data" });
  }

  /** @param {Line} line @param {Around} around */
  #drawBody(line, { tensors, dispatches, beside, shown }) {
    while (this.drawn.length < line.vectors.length) this.drawn.push(new Strip(this.strips));
    for (const strip of this.drawn.splice(line.vectors.length)) strip.root.remove();
    this.drawn.forEach((strip, i) => strip.draw(line.vectors[i], beside?.vectors[i]?.values ?? null));
    this.facts.replaceChildren(...factsOf(line, tensors, dispatches).map((text) => el("li", "", text)));
    this.#drawParts(line, shown);
  }

  /** The focus stays on the button of the same place. @param {Line} line @param {import("./parts.js").Shown} shown */
  #drawParts(line, shown) {
    const buttons = () => [...this.parts.querySelectorAll("button")];
    const at = buttons().indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    this.parts.replaceChildren(...line.parts.map((part) => drawPart(part, shown)));
    if (at >= 0) buttons()[at]?.focus({ preventScroll: true });
  }
}

/** @param {Line} line @param {Line | null} beside */
function figuresOf({ shape, vectors: [{ values }] }, beside) {
  const own = `${shape.join(" × ")} · norm ${number(extent(values).norm)}`;
  const theirs = beside?.vectors[0]?.values;
  return theirs && theirs.length === values.length
    ? `${own} · cos ${cosine(values, theirs).toFixed(2)}`
    : own;
}

/** @param {Line} line @param {TensorEntry[] | null} tensors @param {DispatchEntry[]} dispatches */
function factsOf(line, tensors, dispatches) {
  const facts = tensorsOf(line, tensors).map(
    ({ name, shape, n_bytes: n }) => `${name}: ${shape.join(" × ")}, ${bytes(n)}`,
  );
  const own = dispatches.filter(({ label }) => line.ops.includes(label));
  if (own.length) {
    const names = own.map(({ label, op, n_bytes: n }) => `${label} (${op}${n ? `, ${bytes(n)}` : ""})`);
    facts.push(`${own.length > 1 ? "Dispatches" : "Dispatch"} ${names.join(", ")}. ${line.inside ? INSIDE : ""}`);
  }
  if (line.note) facts.push(line.note);
  return facts;
}

/** Tensors that a line reads; those tied to another are stored once. @param {Line} line @param {TensorEntry[] | null} tensors */
export const tensorsOf = (line, tensors) => (tensors ?? []).filter((tensor) => line.reads(tensor));
