// Steering: vectors from one text to another, added to the residual stream before a layer.
//
// Turner et al. 2023, "Activation addition: steering language models without optimization".

import { el, inputOf, newButton, setText } from "../../ui/dom.js";
import { isEnter } from "../../ui/enter-key.js";
import { MAX_STEERS, STRENGTH } from "../../interventions/interventions.js";
import { add, edit, remove } from "../../interventions/intervention-store.js";
import { state } from "../../state.js";
import {
  drawNumber,
  drawRange,
  newIcon,
  newMute,
  newNumber,
  newRange,
} from "./factor-bar.js";

/** Example pairs for a story model, with strengths that keep its text coherent. */
const EXAMPLES = [
  {
    name: "at sea",
    toward: "The ship sailed over the sea",
    away: "The house stood in the wood",
    strength: 0.4,
  },
  {
    name: "afraid",
    toward: "He was afraid of the dark",
    away: "He was happy in the sun",
    strength: 0.4,
  },
  {
    name: "at night",
    toward: "It was dark in the middle of the night",
    away: "The sun was bright in the middle of the day",
    strength: 0.4,
  },
];
/** Default layer as a share of all: early enough to affect more than one word. */
const EARLY = 3 / 8;
/** Range of the slider; larger strengths are seldom useful. */
const SLIDER = 2;

export class SteerPanel {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.list = root.appendChild(el("ul", "rc-list"));
    const empty = { toward: "", away: "", strength: 0.5 };
    this.add = newButton("Add vector", () => this.#add(empty), "text rc-add");
    const foot = root.appendChild(el("p", "rc-foot"));
    this.examples = EXAMPLES.map(({ name, ...pair }) => newButton(name, () => this.#add(pair)));
    foot.append(this.add, el("span", "", "or"), ...this.examples);
    /** @type {Map<string, ReturnType<typeof newRow>>} */
    this.rows = new Map();
  }

  /** @param {Pick<SteerVector, "toward" | "away" | "strength">} pair */
  #add(pair) {
    const n = state.hello?.model.n_layers ?? 0;
    add("steer", { layer: Math.floor(n * EARLY), ...pair });
  }

  /** @param {{setting: Setting, model: ToPage.PageModelInfo, free: boolean}} now */
  draw({ setting, model, free }) {
    const known = new Set(setting.steer.map(({ key }) => key));
    for (const [key, { node }] of this.rows) if (!known.has(key)) this.#drop(key, node);
    for (const vector of setting.steer)
      drawRow(this.rows.get(vector.key) ?? this.#build(vector), vector, model, free);
    this.list.hidden = !setting.steer.length;
    const full = setting.steer.length >= MAX_STEERS;
    for (const button of [this.add, ...this.examples]) button.disabled = !free || full;
  }

  /** @param {string} key @param {HTMLElement} node */
  #drop(key, node) {
    const within = node.contains(document.activeElement);
    node.remove();
    this.rows.delete(key);
    if (within) this.add.focus();
  }

  /** @param {SteerVector} vector */
  #build({ key }) {
    const row = newRow(key);
    this.rows.set(key, row);
    this.list.append(row.node);
    row.node.scrollIntoView({ block: "nearest" });
    return row;
  }
}

/** @param {string} label @param {string} placeholder @param {(text: string) => void} onText */
function newText(label, placeholder, onText) {
  const node = Object.assign(el("input", "rc-text-box"), { placeholder, spellcheck: false });
  node.autocomplete = "off";
  node.setAttribute("aria-label", label);
  node.addEventListener("change", () => onText(node.value));
  node.addEventListener("keydown", (event) => {
    if (isEnter(event)) onText(node.value);
  });
  return node;
}

/** @param {string} key */
function newRow(key) {
  const node = el("li", "rc-vector");
  /** @param {Partial<SteerVector>} values @param {symbol} [gesture] */
  const put = (values, gesture) => edit("steer", key, values, gesture);
  /** @param {RangeSlider} range @param {string} name */
  const drag = (range, name) => {
    /** @type {symbol | null} */
    let gesture = null;
    range.input.addEventListener("input", (event) => {
      gesture ??= Symbol(name);
      put({ [name]: Number(inputOf(event).value) }, gesture);
    });
    range.input.addEventListener("change", () => (gesture = null));
    return range;
  };
  const toward = newText("Steer toward", "toward", (text) => put({ toward: text }));
  const away = newText("Steer away from", "away from (optional)", (text) => put({ away: text }));
  const layer = drag(newRange({ min: 0, step: 1, ariaLabel: "Layer" }), "layer");
  const limits = { min: -SLIDER, max: SLIDER, step: 0.05, ariaLabel: "Strength" };
  const strength = drag(newRange(limits), "strength");
  const box = newNumber("Strength, value", STRENGTH, (value) => put({ strength: value }));
  const mute = newMute((muted) => put({ muted }));
  const gone = newIcon("i-close", "Remove this vector", () => remove("steer", key));
  const layerNo = el("span", "rc-what");
  const lines = [el("div", "rc-line"), el("div", "rc-line"), el("div", "rc-line")];
  lines[0].append(toward, gone);
  lines[1].append(el("span", "rc-minus", "−"), away, mute);
  lines[2].append(layerNo, layer.node, el("span", "rc-what", "strength"), strength.node, box);
  node.append(...lines);
  return { node, toward, away, layer, layerNo, strength, box, mute, gone };
}

/**
 * @param {ReturnType<typeof newRow>} row
 * @param {SteerVector} vector
 * @param {ToPage.PageModelInfo} model
 * @param {boolean} free
 */
function drawRow(row, { layer, toward, away, strength, muted }, { n_layers: n }, free) {
  row.node.toggleAttribute("data-muted", muted || toward === "");
  drawText(row.toward, toward);
  drawText(row.away, away ?? "");
  row.layer.input.max = String(n - 1);
  drawRange(row.layer, layer, `layer ${layer}`);
  setText(row.layerNo, `layer ${layer}`);
  drawRange(row.strength, strength, String(strength), strength === 0);
  drawNumber(row.box, strength);
  row.mute.setAttribute("aria-pressed", String(muted));
  for (const name of /** @type {const} */ (["input", "button"]))
    for (const control of row.node.querySelectorAll(name)) control.disabled = !free;
}

/** @param {HTMLInputElement} box @param {string} text */
function drawText(box, text) {
  if (document.activeElement === box && box.dataset.shown === text) return;
  if (box.value !== text) box.value = text;
  box.dataset.shown = text;
}
