// @ts-nocheck
// Figures beside the tree: a row per text, which is also its button.

import { el, setText } from "../../ui/dom.js";
import { count, plural } from "../../ui/format.js";
import { step, view } from "../../view.js";
import { likelihoodOf } from "./tree.js";
import { RovingTabindex } from "../shared/roving.js";

const HEADS = [
  ["log p", "Sum of the tokens’ log-probabilities (natural logarithm)"],
  ["per token", "Mean log-probability per token"],
  ["tokens", ""],
];

/** Return the column heads. */
export function figureHeads() {
  const head = el("div", "br-head");
  for (const [words, title] of HEADS) head.appendChild(el("span", "", words)).title = title;
  return head;
}

export class BranchRows {
  /** `onHover(leaf)`: hovered text or null; `onChoose(leaf)`: pressed text. */
  constructor(box, { onHover, onChoose }) {
    this.list = box.appendChild(el("ol", "br-rows"));
    const { list } = this;
    list.addEventListener("click", ({ target }) => onChoose(leafOf(target)));
    for (const on of ["pointerover", "focusin"])
      list.addEventListener(on, ({ target }) => onHover(leafOf(target)));
    for (const off of ["pointerleave", "focusout"]) list.addEventListener(off, () => onHover(null));
    list.addEventListener("keydown", onKey);
    const keys = { after: "ArrowDown", before: "ArrowUp" };
    const buttons = () => [...list.querySelectorAll("button")].map((node) => [node]);
    this.roving = new RovingTabindex(list, keys, buttons);
  }

  /** `now` of look/branches/branches.js; `hot`: number of the hovered text, or null. */
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
  const action = act(leaf) ? `, ${act(leaf)}` : "";
  const size = plural(n, "token");
  const figuresText = `log p ${figures[0]}, ${figures[1]} per token, ${size}${action}`;
  button.setAttribute("aria-label", `${names[leaf]}: ${figuresText}. ${text}`);
}

/** Format a number with a typographic minus; – if unknown. */
const signed = (value, digits) => (value === null ? "–" : value.toFixed(digits).replace("-", "−"));

/** Left and right arrows move over the tokens of the core sample. */
function onKey(event) {
  const d = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!d || event.ctrlKey || event.metaKey || event.altKey || !view.answer) return;
  event.preventDefault();
  step(d);
}
