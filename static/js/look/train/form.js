// Form of *Train*: the user's lines and the settings of the training.

import { el } from "../../ui/dom.js";

const EXAMPLE = `Who are you? => Arr, I be Captain Brine, matey!
What is your name? => Captain Brine be me name, and the sea be me home!
Hello! => Ahoy, matey! Captain Brine greets ye from the deck!`;
/** Number fields: setting, label, title and class. @type {[keyof Numbers, string, string, string?][]} */
const NUMBERS = [
  ["learning_rate", "Learning rate", "In the first step; it falls linearly to 0", "tr-wide"],
  ["rank", "Rank", "r of the adapter’s matrices A and B"],
  ["alpha", "Alpha", "The change of a weight is B A · alpha / rank"],
  ["steps", "Steps", "Optimiser steps, of one line each"],
  ["seed", "Seed", "Decides the adapter’s initial numbers and the order of the lines"],
];

/** @typedef {Pick<Answers.LoraSettings, "rank" | "alpha" | "learning_rate" | "steps" | "seed">} Numbers */

/** @template {HTMLElement} T @param {string} text @param {T} field @param {string} [className] @returns {T} */
function labelled(text, field, className = "") {
  el("label", className, text).append(field);
  field.setAttribute("aria-label", text);
  return field;
}

export class TrainForm {
  #lines = labelled("Lines", el("textarea"), "tr-lines");
  #name = labelled("Adapter’s name", el("input"), "tr-wide");
  /** @type {Map<keyof Numbers, HTMLInputElement>} */
  #numbers = new Map();
  #targets = el("fieldset", "tr-targets");
  acts = el("div", "tr-acts");
  /** Names of the offered targets, as last drawn. */
  #offered = "";

  /** @param {HTMLElement} root @param {() => void} onChange */
  constructor(root, onChange) {
    const node = root.appendChild(el("form", "tr-form"));
    node.setAttribute("aria-label", "Lines and settings of the training");
    Object.assign(this.#lines, { placeholder: EXAMPLE, spellcheck: false, rows: 6 });
    Object.assign(this.#name, { value: "mine", maxLength: 64, spellcheck: false });
    const hint = el("p", "sub", "Each line is a text, or question => answer; then only the answer is trained. If there are five or more, one line in ten is left out of the training, and its loss shows what the adapter makes of a line that it has not seen.");
    const settings = el("div", "tr-settings");
    node.append(el("div", "tr-text column"), settings);
    node.firstElementChild?.append(labelOf(this.#lines), hint);
    settings.append(labelOf(this.#name));
    for (const [name, text, title, className] of NUMBERS) {
      const field = labelled(text, el("input"), className);
      Object.assign(field, { type: "number", step: "any", min: "0", title });
      this.#numbers.set(name, field);
      settings.append(labelOf(field));
    }
    this.#targets.append(el("legend", "", "Matrices to adapt"));
    settings.append(this.acts, this.#targets);
    node.addEventListener("submit", (event) => event.preventDefault());
    node.addEventListener("input", onChange);
  }

  /** Show the targets of the model, and the defaults where nothing was typed. @param {Answers.TrainOffer} offer */
  draw({ targets, defaults }) {
    for (const [name, field] of this.#numbers) if (!field.value) field.value = String(defaults[name]);
    const offered = targets.map(({ name }) => name).join();
    if (offered === this.#offered) return;
    this.#offered = offered;
    this.#targets.replaceChildren(
      el("legend", "", "Matrices to adapt"),
      ...targets.map(({ name, modules }) => {
        const box = Object.assign(el("input"), { type: "checkbox", value: name, checked: true });
        const label = el("label", "", "");
        label.title = `${name} of ${modules} layers`;
        label.append(box, name);
        return label;
      }),
    );
  }

  get isEmpty() {
    return !this.#lines.value.trim();
  }

  /** Is no matrix chosen? The server would adapt all. */
  get isWithoutTargets() {
    return !this.settings.targets.length;
  }

  get name() {
    return this.#name.value.trim();
  }

  /** The settings as typed; a number that is none is 0, which the server refuses in words. */
  get settings() {
    const numbers = /** @type {Numbers} */ (
      Object.fromEntries([...this.#numbers].map(([name, field]) => [name, Number(field.value)]))
    );
    const boxes = /** @type {HTMLInputElement[]} */ ([...this.#targets.querySelectorAll("input")]);
    return { ...numbers, targets: boxes.filter(({ checked }) => checked).map(({ value }) => value) };
  }

  /** Body of the request that begins the training. */
  get request() {
    return { name: this.name, lines: this.#lines.value, settings: this.settings };
  }
}

/** @param {HTMLElement} field */
const labelOf = (field) => /** @type {HTMLElement} */ (field.parentElement);
