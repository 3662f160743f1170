// Bar over the grid: the selected place with its factor, undo, redo, reset and rerun.

import { el, newButton, setText, setVars } from "../../ui/dom.js";
import { isEnter } from "../../ui/enter-key.js";
import { parseNumber } from "../../settings/sampling-settings.js";
import { FACTOR } from "../../interventions/interventions.js";
import { MAX_SCALE, placeName, factorLabel } from "./factor-grid.js";

/**
 * @typedef {{scale: (factor: number, gesture?: symbol) => void, toGrid: () => void, undo: () => void,
 *   redo: () => void, reset: () => void, again: () => void}} Acts
 */

const STEP = 0.05;

/**
 * Create a range slider: {node, input}; `attributes` of the input.
 *
 * @param {Record<string, string | number>} attributes
 * @returns {RangeSlider}
 */
export function newRange(attributes) {
  const node = el("span", "rail");
  const input = node.appendChild(Object.assign(el("input"), { type: "range", ...attributes }));
  return { node, input };
}

/**
 * Show a value on a range slider.
 *
 * @param {RangeSlider} slider
 * @param {number} value
 * @param {string} words
 * @param {boolean} [off]
 */
export function drawRange({ node, input }, value, words, off = false) {
  if (Number(input.value) !== value) input.value = String(value);
  const [from, to] = [Number(input.min), Number(input.max)];
  setVars(input, { "--v": Math.min(1, Math.max(0, (value - from) / (to - from))) });
  input.setAttribute("aria-valuetext", words);
  node.classList.toggle("off", off);
}

/**
 * Create a number field, read on blur or Enter.
 *
 * @param {string} label
 * @param {Parameters<typeof parseNumber>[1]} range
 * @param {(value: number) => void} onValue
 */
export function newNumber(label, range, onValue) {
  const attributes = { inputMode: "decimal", autocomplete: "off" };
  const node = Object.assign(el("input", "rc-number"), attributes);
  node.setAttribute("aria-label", label);
  const read = () => {
    const { value, error } = parseNumber(node.value, range);
    if (error) node.setAttribute("aria-invalid", "true");
    else node.removeAttribute("aria-invalid");
    node.title = error ?? "";
    if (error || value === undefined) return false;
    delete node.dataset.typed;
    onValue(value);
    return true;
  };
  node.addEventListener("input", () => (node.dataset.typed = ""));
  node.addEventListener("change", read);
  node.addEventListener("blur", () => delete node.dataset.typed);
  node.addEventListener("keydown", (event) => {
    if (!isEnter(event)) return;
    event.preventDefault();
    if (read()) node.dispatchEvent(new CustomEvent("taken"));
  });
  return node;
}

/**
 * Show a number in its field, unless the user is typing there.
 *
 * @param {HTMLInputElement} node
 * @param {number | null} value
 */
export function drawNumber(node, value) {
  const text = value === null ? "" : String(Number(value.toFixed(3)));
  if (node.dataset.typed !== undefined) return;
  if (node.value !== text) node.value = text;
  node.removeAttribute("aria-invalid");
  node.title = "";
}

const SVG = "http://www.w3.org/2000/svg";

/**
 * Create a button with one of the page's icons and an accessible name.
 *
 * @param {string} icon
 * @param {string} name
 * @param {() => void} onClick
 */
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

/** Create a toggle button; `onMute(muted)`. @param {(muted: boolean) => void} onMute */
export function newMute(onMute) {
  const pressed = () => mute.getAttribute("aria-pressed") === "true";
  const mute = newButton("Mute", () => onMute(!pressed()), "text rc-mute");
  return mute;
}

export class FactorBar {
  /**
   * `on`: {scale(factor, gesture), toGrid(), undo, redo, reset, again}.
   *
   * @param {HTMLElement} root
   * @param {Acts} on
   */
  constructor(root, on) {
    const bar = root.appendChild(el("div", "rc-bar"));
    this.name = bar.appendChild(el("label", "rc-name"));
    this.range = newRange({ min: 0, max: MAX_SCALE, step: STEP, id: "rc-factor" });
    this.name.htmlFor = "rc-factor";
    /** @type {symbol | null} */
    let gesture = null;
    const { input } = this.range;
    input.addEventListener("input", () => {
      gesture ??= Symbol("factor");
      on.scale(Number(input.value), gesture);
    });
    this.range.input.addEventListener("change", () => (gesture = null));
    this.box = newNumber("Factor", FACTOR, (value) => on.scale(value));
    this.box.addEventListener("taken", on.toGrid);
    this.status = el("p", "ellipsis rc-status");
    this.status.setAttribute("role", "status");
    this.undo = newButton("Undo", on.undo);
    this.redo = newButton("Redo", on.redo);
    this.undo.title = "Ctrl Z";
    this.redo.title = "Ctrl Shift Z";
    this.reset = newButton("Reset", on.reset);
    this.again = newButton("Run again", on.again, "text rc-again");
    this.again.title = "From the start, with the same seed and the current interventions";
    const acts = el("div", "rc-acts");
    acts.append(this.undo, this.redo, this.reset, this.again);
    bar.append(this.range.node, this.box, this.status, acts);
  }

  /**
   * `status`: {text, tone}; `can`: enabled actions; `free`: may the factor be changed?
   *
   * @param {{chosen: string, factor: number | null, status: {text: string, tone: string}, can: Record<"undo" | "redo" | "reset" | "again", boolean>, free: boolean}} now
   */
  draw({ chosen, factor, status, can, free }) {
    setText(this.name, placeName(chosen));
    drawRange(this.range, factor ?? 1, factorLabel(factor), factor === 1);
    drawNumber(this.box, factor);
    this.range.input.disabled = this.box.disabled = !free;
    setText(this.status, status.text);
    this.status.dataset.tone = status.tone;
    this.undo.disabled = !can.undo;
    this.redo.disabled = !can.redo;
    this.reset.disabled = !can.reset;
    this.again.disabled = !can.again;
  }

  /** Start typing a factor. @param {string} character */
  type(character) {
    this.box.focus();
    this.box.value = character;
    this.box.dataset.typed = "";
    this.box.setSelectionRange(1, 1);
  }
}
