// Over the grid: the place that is chosen with its factor, and taking steps back.

import { el, setText, setVars } from "../dom.js";
import { parseNumber } from "../params.js";
import { FACTOR } from "../reach.js";
import { MOST_SCALE, nameOfPlace, sayFactor } from "./reachgrid.js";

const STEP = 0.05;

/** A range on a rail: {node, input}; `attributes` of the input. */
export function newRange(attributes) {
  const node = el("span", "rail");
  const input = node.appendChild(Object.assign(el("input"), { type: "range", ...attributes }));
  return { node, input };
}

/** Show a value on a range. */
export function drawRange({ node, input }, value, words, off = false) {
  if (Number(input.value) !== value) input.value = value;
  const [from, to] = [Number(input.min), Number(input.max)];
  setVars(input, { "--v": Math.min(1, Math.max(0, (value - from) / (to - from))) });
  input.setAttribute("aria-valuetext", words);
  node.classList.toggle("off", off);
}

/** A box for a number, which is read when it is left or Enter is pressed. */
export function newNumber(label, range, onValue) {
  const node = Object.assign(el("input", "rc-number"), { inputMode: "decimal", autocomplete: "off" });
  node.setAttribute("aria-label", label);
  const read = () => {
    const { value, error } = parseNumber(node.value, range);
    if (error) node.setAttribute("aria-invalid", "true");
    else node.removeAttribute("aria-invalid");
    node.title = error ?? "";
    if (!error) {
      delete node.dataset.typed;
      onValue(value);
    }
    return !error;
  };
  node.addEventListener("input", () => (node.dataset.typed = ""));
  node.addEventListener("change", read);
  node.addEventListener("blur", () => delete node.dataset.typed);
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    if (read()) node.dispatchEvent(new CustomEvent("taken"));
  });
  return node;
}

/** Write a number into its box, unless a person writes there. */
export function drawNumber(node, value) {
  const text = value === null ? "" : String(Number(value.toFixed(3)));
  if (node.dataset.typed !== undefined) return;
  if (node.value !== text) node.value = text;
  node.removeAttribute("aria-invalid");
  node.title = "";
}

export function newButton(text, onClick, className = "text") {
  const button = el("button", className, text);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}

const SVG = "http://www.w3.org/2000/svg";

/** A button with one of the page's icons; `name` is read out. */
export function newIcon(icon, name, onClick) {
  const button = newButton("", onClick, "quiet");
  const svg = document.createElementNS(SVG, "svg");
  const use = svg.appendChild(document.createElementNS(SVG, "use"));
  use.setAttribute("href", `#${icon}`);
  svg.setAttribute("class", "ic");
  svg.setAttribute("aria-hidden", "true");
  button.setAttribute("aria-label", name);
  button.append(svg);
  return button;
}

/** A switch that mutes; `onMute(muted)`. */
export function newMute(onMute) {
  const pressed = () => mute.getAttribute("aria-pressed") === "true";
  const mute = newButton("Mute", () => onMute(!pressed()), "text rc-mute");
  return mute;
}

export class ReachBar {
  /** `on`: {scale(factor, gesture), toGrid(), undo, redo, reset, again}. */
  constructor(root, on) {
    const bar = root.appendChild(el("div", "rc-bar"));
    this.name = bar.appendChild(el("label", "rc-name"));
    this.range = newRange({ min: 0, max: MOST_SCALE, step: STEP, id: "rc-factor" });
    this.name.htmlFor = "rc-factor";
    let gesture = null;
    this.range.input.addEventListener("input", ({ target }) => {
      gesture ??= Symbol("factor");
      on.scale(Number(target.value), gesture);
    });
    this.range.input.addEventListener("change", () => (gesture = null));
    this.box = newNumber("Factor", FACTOR, (value) => on.scale(value));
    this.box.addEventListener("taken", on.toGrid);
    this.says = el("p", "rc-says");
    this.says.setAttribute("role", "status");
    this.undo = newButton("Undo", on.undo);
    this.redo = newButton("Redo", on.redo);
    this.undo.title = "Ctrl Z";
    this.redo.title = "Ctrl Shift Z";
    this.reset = newButton("Reset", on.reset);
    this.again = newButton("Write it again", on.again, "text rc-again");
    this.again.title = "From the start, with the same seed and what is set here";
    const acts = el("div", "rc-acts");
    acts.append(this.undo, this.redo, this.reset, this.again);
    bar.append(this.range.node, this.box, this.says, acts);
  }

  /** `said`: {text, tone}; `can`: which acts are possible; `free`: may it be changed now? */
  draw({ chosen, factor, said, can, free }) {
    setText(this.name, nameOfPlace(chosen));
    drawRange(this.range, factor ?? 1, sayFactor(factor), factor === 1);
    drawNumber(this.box, factor);
    this.range.input.disabled = this.box.disabled = !free;
    setText(this.says, said.text);
    this.says.dataset.tone = said.tone;
    this.undo.disabled = !can.undo;
    this.redo.disabled = !can.redo;
    this.reset.disabled = !can.reset;
    this.again.disabled = !can.again;
  }

  /** Begin to type a factor. */
  type(character) {
    this.box.focus();
    this.box.value = character;
    this.box.dataset.typed = "";
    this.box.setSelectionRange(1, 1);
  }
}
