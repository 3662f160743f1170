// Segmented control: radio buttons in a row.

import { el, inputOf } from "./dom.js";

/**
 * Create a segmented control, which calls `onChange` with the value that a person chose.
 *
 * @template {string} Value
 * @param {{legend: string, name: string, options: Iterable<[value: Value, label: string]>, value?: Value,
 *   onChange: (value: Value) => void}} parts `legend` is read by screen readers, `name` groups the buttons
 */
export function newSegmented({ legend, name, options, value, onChange }) {
  const box = el("fieldset", "seg");
  box.append(el("legend", "vh", legend));
  for (const [option, text] of options) {
    const input = Object.assign(el("input"), { type: "radio", name, value: option, checked: option === value });
    const label = box.appendChild(el("label", "", text));
    label.prepend(input);
  }
  box.addEventListener("change", (event) => onChange(/** @type {Value} */ (inputOf(event).value)));
  return box;
}

/**
 * Show which value is chosen, and which cannot be.
 *
 * @param {HTMLElement} box
 * @param {string} value
 * @param {(value: string) => boolean} [isDisabled]
 */
export function drawSegmented(box, value, isDisabled = () => false) {
  for (const input of box.querySelectorAll("input")) {
    input.checked = input.value === value;
    input.disabled = isDisabled(input.value);
  }
}
