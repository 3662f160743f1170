// Form of the hardware needs: the model, its storage types, the workload and the device.

import { el, newButton } from "../../ui/dom.js";
import { ready, state } from "../../state.js";
import { isMeasuring, knownPeaks, measurePeaks } from "../plan/roofline-costs.js";

export const THIS = "This machine";
export const OWN = "Another device";
const DTYPES = ["f32", "f16", "q8", "q4"];
const KV_DTYPES = ["f32", "f16", "q8", "q8q4", "rotated4"];
const GB = 1e9;
const TFLOPS = 1e12;

/** Number fields of the work, which show what the server takes: name of the parameter and label. @type {["users" | "context" | "rate", string][]} */
const WORK = [
  ["users", "Users"],
  ["context", "Tokens each"],
  ["rate", "Tokens/s wanted"],
];
/**
 * Number fields of the device: label, name of the parameter, start value, unit of the parameter.
 *
 * @type {[label: string, name: string, value: string, unit: number][]}
 */
const DEVICE = [
  ["Memory, GB", "memory_bytes", "", GB],
  ["Bandwidth, GB/s", "bytes_per_s", "1000", GB],
  ["Arithmetic, TFLOPS", "flops_per_s", "", TFLOPS],
  ["Bus, GB/s", "bus_bytes_per_s", "32", GB],
];
/** The rates of this machine are measured; only its memory has to be typed in. */
const ALSO_THIS = "memory_bytes";
/** What is measured of this machine. @type {(keyof Peaks)[]} */
const MEASURED = ["bytes_per_s", "flops_per_s", "cache_bytes", "cache_bytes_per_s", "bus_bytes_per_s"];

/** @param {string} text @param {HTMLElement} field @param {string} [className] */
function labelled(text, field, className = "") {
  const label = el("label", className, text);
  field.setAttribute("aria-label", text);
  label.append(field);
  return label;
}

export class NeedsForm {
  #models = el("select");
  #dtype = el("select");
  #kvDtype = el("select");
  #device = el("select");
  /** Number fields by parameter. @type {Map<string, {field: HTMLInputElement, label: HTMLLabelElement, unit: number}>} */
  #numbers = new Map();
  #peaks = el("p", "nd-peaks");
  #measure = newButton("Measure peak rates", measurePeaks);
  #why = el("span", "sub");
  /** Fields that a person changed; the others show what the server chose. */
  #chosen = new Set();

  /** @param {HTMLElement} root @param {() => void} onChange */
  constructor(root, onChange) {
    const form = root.appendChild(el("form", "nd-form"));
    form.setAttribute("aria-label", "Model, work and device");
    form.append(labelled("Model", this.#models));
    form.append(labelled("Weights as", this.#dtype, "nd-kind"), labelled("Keys, values as", this.#kvDtype, "nd-kind"));
    for (const [name, select] of [[DTYPES, this.#dtype], [KV_DTYPES, this.#kvDtype]])
      fill(/** @type {HTMLSelectElement} */ (select), /** @type {string[]} */ (name));
    for (const [name, text] of WORK) form.append(this.#number(text, name));
    form.append(labelled("Device", this.#device));
    for (const field of DEVICE) form.append(this.#number(...field));
    this.#peaks.append(this.#measure, this.#why);
    form.append(this.#peaks);
    form.addEventListener("submit", (event) => event.preventDefault());
    // What is being typed is not overwritten by an answer that comes meanwhile.
    form.addEventListener("input", (event) => this.#chosen.add(event.target));
    form.addEventListener("change", (event) => {
      this.#chosen.add(event.target);
      if (event.target === this.#models)
        [this.#dtype, this.#kvDtype, this.#fieldOf("context")].forEach((field) => this.#chosen.delete(field));
      onChange();
    });
    this.#drawDevice();
  }

  /** @param {string} text @param {string} name */
  #number(text, name, value = "", unit = 1) {
    const field = el("input");
    Object.assign(field, { type: "number", min: "0", step: "any", value });
    const label = labelled(text, field);
    this.#numbers.set(name, { field, label, unit });
    return label;
  }

  /** Name of the selected device; "": not chosen yet. */
  get device() {
    return this.#device.value;
  }

  /** @param {string} name */
  set device(name) {
    this.#device.value = name;
  }

  /** Parameters of `/api/sizing`. */
  get query() {
    const query = new URLSearchParams();
    /** @param {string} name @param {HTMLSelectElement} select */
    const choice = (name, select) => this.#chosen.has(select) && query.set(name, select.value);
    choice("model", this.#models);
    choice("dtype", this.#dtype);
    choice("kv_dtype", this.#kvDtype);
    const isOwn = this.device === OWN;
    const measured = this.device === THIS ? knownPeaks() : null;
    for (const [name, { field, unit }] of this.#numbers) {
      const isWork = WORK.some(([work]) => work === name);
      const isAsked = isWork ? this.#chosen.has(field) : isOwn || (measured?.bytes_per_s && name === ALSO_THIS);
      if (isAsked && field.value) query.set(name, String(Number(field.value) * unit));
    }
    if (measured?.bytes_per_s)
      for (const name of MEASURED) if (measured[name]) query.set(name, String(measured[name]));
    if (query.has("bytes_per_s")) query.set("device", this.device);
    return query;
  }

  /** Show what can be chosen, and what the server chose. @param {Answers.SizingAnswer} answer */
  draw({ models, sizing }) {
    fill(this.#models, models);
    this.#models.value = sizing.model;
    this.#dtype.value = sizing.dtype;
    this.#kvDtype.value = sizing.kv.dtype;
    for (const option of this.#kvDtype.options) option.disabled = !(option.value in sizing.kv.token_bytes);
    for (const [name] of WORK) {
      const field = this.#fieldOf(name);
      if (!this.#chosen.has(field)) field.value = String(sizing[name]);
    }
    const own = new Set([THIS, OWN]);
    const known = sizing.devices.map(({ device }) => device.name).filter((name) => !own.has(name));
    const { device } = this;
    fill(this.#device, [...known, THIS, OWN]);
    this.device = device || known[0];
    this.#drawDevice();
  }

  /** @param {string} name */
  #fieldOf(name) {
    return /** @type {{field: HTMLInputElement}} */ (this.#numbers.get(name)).field;
  }

  #drawDevice() {
    const { device } = this;
    for (const [, name] of DEVICE) {
      const { label } = /** @type {{label: HTMLLabelElement}} */ (this.#numbers.get(name));
      label.hidden = !(device === OWN || (device === THIS && name === ALSO_THIS));
    }
    const peaks = knownPeaks();
    this.#peaks.hidden = device !== THIS || !!peaks?.bytes_per_s;
    this.#measure.hidden = peaks !== null || isMeasuring();
    this.#measure.disabled = !ready() || !!state.active;
    this.#why.textContent = isMeasuring()
      ? "Measuring, about a second …"
      : peaks
        ? "The engine does not run on a GPU."
        : "Takes about a second.";
  }
}

/** @param {HTMLSelectElement} select @param {readonly string[]} names */
function fill(select, names) {
  if ([...select.options].map(({ value }) => value).join() === names.join()) return;
  select.replaceChildren(
    ...names.map((name) => Object.assign(el("option", "", name), { value: name })),
  );
}
