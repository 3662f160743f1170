// Controls over the tree: which tree is shown, the beam's settings, and a summary.

import { clamp, el, setText } from "../../ui/dom.js";
import { drawSegmented, newSegmented } from "../../ui/segmented.js";

/** @type {[mode: TreeMode, label: string][]} */
const MODES = [
  ["versions", "Versions"],
  ["beam", "Beam search"],
];
/** @type {[name: "width" | "depth", words: string, min: number, max: number][]} */
const NUMBERS = [
  ["width", "beams", 2, 8],
  ["depth", "tokens each", 4, 32],
];

export class BranchBar {
  /**
   * `onMode(mode)`; `search`: {width, depth, perToken}, updated before `onSearch()`.
   *
   * @param {HTMLElement} root
   * @param {BeamSettings} search
   * @param {{onMode: (mode: TreeMode) => void, onSearch: () => void}} on
   */
  constructor(root, search, { onMode, onSearch }) {
    const bar = root.appendChild(el("div", "controls br-bar"));
    this.modes = newSegmented({ legend: "Tree", name: "look-branches", options: MODES, onChange: onMode });
    bar.append(this.modes);
    this.search = bar.appendChild(el("div", "controls br-search"));
    /** @param {Partial<BeamSettings>} changed */
    const keep = (changed) => {
      Object.assign(search, changed);
      onSearch();
    };
    this.search.append(
      ...NUMBERS.map((spec) => number(spec, search, keep)),
      check("length-normalised", (perToken) => keep({ perToken })),
    );
    this.summary = bar.appendChild(el("p", "readout br-summary"));
  }

  /** @param {TreeMode} mode */
  draw(mode) {
    drawSegmented(this.modes, mode);
    this.search.hidden = mode !== "beam";
  }

  /** @param {string} words */
  say(words) {
    setText(this.summary, words);
  }
}

/**
 * Number field; invalid input restores the old value.
 *
 * @param {(typeof NUMBERS)[number]} spec
 * @param {BeamSettings} search
 * @param {(settings: Partial<BeamSettings>) => void} keep
 */
function number([name, words, min, max], search, keep) {
  const box = el("label", "", words);
  const attributes = { type: "number", min: String(min), max: String(max), step: "1" };
  const input = Object.assign(el("input"), attributes, { value: String(search[name]) });
  input.addEventListener("change", () => {
    const wanted = clamp(Math.round(Number(input.value)) || search[name], min, max);
    input.value = String(wanted);
    keep({ [name]: wanted });
  });
  box.prepend(input);
  return box;
}

/** @param {string} words @param {(checked: boolean) => void} keep */
function check(words, keep) {
  const box = el("label", "", words);
  const input = Object.assign(el("input"), { type: "checkbox" });
  input.addEventListener("change", () => keep(input.checked));
  box.prepend(input);
  return box;
}
