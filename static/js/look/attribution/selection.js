// Selection of a run of tokens in the text of the prompt: drag over them, or click the first and the last; on the
// keyboard Shift and the arrow keys, or Enter on the first and the last.

import { clamp, targetOf } from "../../ui/dom.js";

/** Tokens `from` to `to` (exclusive) of the prompt. @typedef {{from: number, to: number}} Span */
/** @typedef {import("../loss/text.js").LossText} LossText */

export class Selection {
  /** @type {Span | null} */
  span = null;
  #isOn = false;
  /** The token from which the selection extends. */
  #anchor = -1;
  /** The first token was clicked, and the next click ends the selection. */
  #isOpen = false;
  /** The token on which the pointer was pressed; −1: it is not pressed. */
  #pressed = -1;
  #isDragged = false;

  /** `onChange`: called after each change; while the pointer drags, only at the end. @param {LossText} text @param {() => void} onChange */
  constructor(text, onChange) {
    this.text = text;
    this.onChange = onChange;
    const { box } = text;
    box.addEventListener("pointerdown", (event) => this.#onPress(event));
    box.addEventListener("pointermove", (event) => this.#onMove(event));
    for (const name of ["pointerup", "pointerleave", "pointercancel"])
      box.addEventListener(name, (event) => this.#onRelease(/** @type {PointerEvent} */ (event)));
    box.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** Show the selection. `isOn`: whether tokens can be selected. @param {boolean} isOn */
  draw(isOn) {
    const { box, nodes } = this.text;
    const { from, to } = (isOn && this.span) || { from: 0, to: 0 };
    this.#isOn = isOn;
    box.classList.toggle("ab-selects", isOn);
    nodes.forEach((node, i) => node.classList.toggle("ab-selected", from <= i && i < to));
  }

  /** Select these tokens, or none. @param {Span | null} span */
  set(span) {
    this.span = span;
    this.#anchor = span?.from ?? -1;
    this.#isOpen = false;
  }

  /** @param {number} i */
  #extendTo(i) {
    this.span = { from: Math.min(this.#anchor, i), to: Math.max(this.#anchor, i) + 1 };
    this.draw(true);
  }

  /** @param {PointerEvent} event */
  #onPress(event) {
    this.#pressed = this.#isOn && !event.button ? placeOf(event) : -1;
    this.#isDragged = false;
  }

  /** @param {PointerEvent} event */
  #onMove(event) {
    const i = placeOf(event);
    if (this.#pressed < 0 || i < 0 || event.pointerType === "touch") return; // a finger scrolls the text
    if (i === this.#pressed && !this.#isDragged) return;
    if (!this.#isDragged && !(event.shiftKey && this.span)) this.#anchor = this.#pressed;
    this.#isDragged = true;
    this.#extendTo(i);
  }

  /** @param {PointerEvent} event */
  #onRelease(event) {
    const pressed = this.#pressed;
    this.#pressed = -1;
    if (pressed < 0) return;
    if (!this.#isDragged && event.type === "pointerup") this.#click(pressed, event.shiftKey);
    if (!this.#isDragged) return;
    this.#isOpen = false;
    this.onChange();
  }

  /** Begin at a token, or end there. @param {number} i @param {boolean} ends */
  #click(i, ends) {
    this.#isOpen = !(ends || this.#isOpen) || !this.span;
    if (this.#isOpen) this.#anchor = i;
    this.#extendTo(i);
    this.onChange();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const i = placeOf(event);
    if (!this.#isOn || i < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.#click(i, event.shiftKey);
      return;
    }
    const last = this.text.nodes.length - 1;
    /** @type {Record<string, number>} */
    const keys = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: last };
    if (!event.shiftKey || keys[event.key] === undefined) return;
    const { from, to } = this.span ?? { from: i, to: i + 1 };
    this.#anchor = i === from ? to - 1 : i === to - 1 ? from : i;
    this.#isOpen = false;
    this.#extendTo(clamp(keys[event.key], 0, last));
    this.onChange();
  }
}

/** Place of the token that an event is about; −1: none. @param {Event} event */
function placeOf(event) {
  const node = /** @type {HTMLElement | null} */ (targetOf(event).closest(".ls-tok"));
  return node ? Number(node.dataset.i) : -1;
}
