// Over the trees: which of them is drawn, how far a beam searches, and what is seen in words.

import { clamp, el, setText } from "../dom.js";

const MODES = [
  ["versions", "Versions"],
  ["beam", "Likeliest from here"],
];
const NUMBERS = [
  ["width", "continuations", 2, 8],
  ["depth", "tokens each", 4, 32],
];

export class BranchBar {
  /** `onMode(mode)`; `search`: {width, depth, perToken}, kept up to date before `onSearch()`. */
  constructor(root, search, { onMode, onSearch }) {
    const bar = root.appendChild(el("div", "br-bar"));
    this.modes = bar.appendChild(el("fieldset", "seg"));
    this.modes.append(el("legend", "vh", "Which tree"), ...MODES.map(choice));
    this.modes.addEventListener("change", ({ target }) => onMode(target.value));
    this.search = bar.appendChild(el("div", "br-search"));
    const keep = (name, value) => {
      search[name] = value;
      onSearch();
    };
    this.search.append(
      ...NUMBERS.map((spec) => number(spec, search, keep)),
      check("perToken", "ranked per token", keep),
    );
    this.says = bar.appendChild(el("p", "br-says"));
  }

  draw(mode) {
    for (const input of this.modes.querySelectorAll("input")) input.checked = input.value === mode;
    this.search.hidden = mode !== "beam";
  }

  say(words) {
    setText(this.says, words);
  }
}

function choice([value, name]) {
  const box = el("label", "", name);
  box.prepend(Object.assign(el("input"), { type: "radio", name: "look-branches", value }));
  return box;
}

/** A whole number; what is not one leaves it as it was. */
function number([name, words, min, max], search, keep) {
  const box = el("label", "", words);
  const input = Object.assign(el("input"), { type: "number", min, max, step: 1, value: search[name] });
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
