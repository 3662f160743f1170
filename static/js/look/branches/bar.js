// Controls over the tree: which tree is shown, the beam's settings, and a summary.

import { clamp, el, inputOf, setText } from "../../ui/dom.js";

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
    const bar = root.appendChild(el("div", "br-bar"));
    this.modes = bar.appendChild(el("fieldset", "seg"));
    this.modes.append(el("legend", "vh", "Tree"), ...MODES.map(choice));
    this.modes.addEventListener("change", (event) => onMode(/** @type {TreeMode} */ (inputOf(event).value)));
    this.search = bar.appendChild(el("div", "br-search"));
    /** @param {Partial<BeamSettings>} changed */
    const keep = (changed) => {
      Object.assign(search, changed);
      onSearch();
    };
    this.search.append(
      ...NUMBERS.map((spec) => number(spec, search, keep)),
      check("length-normalised", (perToken) => keep({ perToken })),
    );
    this.summary = bar.appendChild(el("p", "br-summary"));
  }

  /** @param {TreeMode} mode */
  draw(mode) {
    for (const input of this.modes.querySelectorAll("input")) input.checked = input.value === mode;
    this.search.hidden = mode !== "beam";
  }

  /** @param {string} words */
  say(words) {
    setText(this.summary, words);
  }
}

/** @param {string[]} mode */
function choice([value, name]) {
  const box = el("label", "", name);
  box.prepend(Object.assign(el("input"), { type: "radio", name: "look-branches", value }));
  return box;
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
