// @ts-nocheck
// Controls over the tree: which tree is shown, the beam's settings, and a summary.

import { clamp, el, setText } from "../../ui/dom.js";

const MODES = [
  ["versions", "Versions"],
  ["beam", "Beam search"],
];
const NUMBERS = [
  ["width", "beams", 2, 8],
  ["depth", "tokens each", 4, 32],
];

export class BranchBar {
  /** `onMode(mode)`; `search`: {width, depth, perToken}, updated before `onSearch()`. */
  constructor(root, search, { onMode, onSearch }) {
    const bar = root.appendChild(el("div", "br-bar"));
    this.modes = bar.appendChild(el("fieldset", "seg"));
    this.modes.append(el("legend", "vh", "Tree"), ...MODES.map(choice));
    this.modes.addEventListener("change", ({ target }) => onMode(target.value));
    this.search = bar.appendChild(el("div", "br-search"));
    const keep = (name, value) => {
      search[name] = value;
      onSearch();
    };
    this.search.append(
      ...NUMBERS.map((spec) => number(spec, search, keep)),
      check("perToken", "length-normalised", keep),
    );
    this.summary = bar.appendChild(el("p", "br-summary"));
  }

  draw(mode) {
    for (const input of this.modes.querySelectorAll("input")) input.checked = input.value === mode;
    this.search.hidden = mode !== "beam";
  }

  say(words) {
    setText(this.summary, words);
  }
}

function choice([value, name]) {
  const box = el("label", "", name);
  box.prepend(Object.assign(el("input"), { type: "radio", name: "look-branches", value }));
  return box;
}

/** Number field; invalid input restores the old value. */
function number([name, words, min, max], search, keep) {
  const box = el("label", "", words);
  const attributes = { type: "number", min, max, step: 1, value: search[name] };
  const input = Object.assign(el("input"), attributes);
  input.addEventListener("change", () => {
    const wanted = clamp(Math.round(Number(input.value)) || search[name], min, max);
    input.value = wanted;
    keep(name, wanted);
  });
  box.prepend(input);
  return box;
}

function check(name, words, keep) {
  const box = el("label", "", words);
  const input = Object.assign(el("input"), { type: "checkbox" });
  input.addEventListener("change", () => keep(name, input.checked));
  box.prepend(input);
  return box;
}
