// Beside the tree: a line of figures for each of its texts, which is also the button for it.

import { el, setText } from "../dom.js";
import { count, plural } from "../format.js";
import { step, view } from "../view.js";
import { likelihoodOf } from "./branchtree.js";
import { Roving } from "./roving.js";

const HEADS = [
  ["log p", "Sum of the natural logarithms of the tokens’ probabilities"],
  ["per token", "The same, over the number of tokens"],
  ["tokens", ""],
];

/** The names of the figures, over them. */
export function figureHeads() {
  const head = el("div", "br-head");
  for (const [words, title] of HEADS) head.appendChild(el("span", "", words)).title = title;
  return head;
}

export class BranchRows {
  /** `onLook(leaf)`: the hand is on a text's line, null: on none. `onChoose(leaf)`: it was pressed. */
  constructor(box, { onLook, onChoose }) {
    this.list = box.appendChild(el("ol", "br-rows"));
    const { list } = this;
    list.addEventListener("click", ({ target }) => onChoose(leafOf(target)));
    for (const on of ["pointerover", "focusin"]) list.addEventListener(on, ({ target }) => onLook(leafOf(target)));
    for (const off of ["pointerleave", "focusout"]) list.addEventListener(off, () => onLook(null));
    list.addEventListener("keydown", walk);
    const keys = { after: "ArrowDown", before: "ArrowUp" };
    this.roving = new Roving(list, keys, () => [...list.querySelectorAll("button")].map((node) => [node]));
  }

  /** `now` of branches.js; `hot`: number of the text under the hand, or null. */
  draw(now, hot) {
    const { rows } = now.tree;
    if (this.list.children.length !== rows.length) {
      this.list.replaceChildren(...rows.map(newRow));
      this.roving.reset();
    }
    rows.forEach((leaf, row) => drawRow(this.list.children[row], leaf, now, leaf === hot));
  }
}

const leafOf = (target) => {
  const leaf = target.closest?.("li")?.dataset.leaf;
  return leaf === undefined ? null : Number(leaf);
};

function newRow() {
  const row = el("li");
  const button = row.appendChild(el("button"));
  button.type = "button";
  button.append(el("span", "n"), el("span", "n"), el("span", "n"), el("span", "br-act"));
  return row;
}

function drawRow(row, leaf, { names, texts, shown, act }, hot) {
  const { total, mean, n } = likelihoodOf(texts[leaf]);
  const [button] = row.children;
  const figures = [signed(total, 2), signed(mean, 3), count(n)];
  [...figures, act(leaf)].forEach((text, i) => setText(button.children[i], text));
  row.dataset.leaf = leaf;
  row.classList.toggle("on", leaf === shown);
  row.classList.toggle("hot", hot);
  button.setAttribute("aria-disabled", String(!act(leaf)));
  if (leaf === shown) button.setAttribute("aria-current", "true");
  else button.removeAttribute("aria-current");
  const text = texts[leaf].map((token) => token.text).join("").trim();
  const does = act(leaf) ? `, ${act(leaf)}` : "";
  const said = `log p ${figures[0]}, ${figures[1]} per token, ${plural(n, "token")}${does}`;
  button.setAttribute("aria-label", `${names[leaf]}: ${said}. ${text}`);
}

/** A number with a real minus sign; – for one that is not known. */
const signed = (value, digits) => (value === null ? "–" : value.toFixed(digits).replace("-", "−"));

/** Left and right walk along the tokens that the core shows. */
function walk(event) {
  const d = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!d || event.ctrlKey || event.metaKey || event.altKey || !view.answer) return;
  event.preventDefault();
  step(d);
}
