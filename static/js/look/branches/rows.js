// Figures beside the tree: a row per text, which is also its button.

import { el, setText, targetOf } from "../../ui/dom.js";
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
  /**
   * `onHover(leaf)`: hovered text or null; `onChoose(leaf)`: pressed text.
   *
   * @param {HTMLElement} box
   * @param {{onHover: (leaf: number | null) => void, onChoose: (leaf: number | null) => void}} on
   */
  constructor(box, { onHover, onChoose }) {
    this.list = box.appendChild(el("ol", "br-rows"));
    /** @type {ReturnType<typeof newRow>[]} */
    this.rows = [];
    const { list } = this;
    list.addEventListener("click", (event) => onChoose(leafOf(event)));
    for (const on of ["pointerover", "focusin"])
      list.addEventListener(on, (event) => onHover(leafOf(event)));
    for (const off of ["pointerleave", "focusout"]) list.addEventListener(off, () => onHover(null));
    list.addEventListener("keydown", onKey);
    const keys = { next: "", previous: "", after: "ArrowDown", before: "ArrowUp" };
    const buttons = () => [...list.querySelectorAll("button")].map((node) => [node]);
    this.roving = new RovingTabindex(list, keys, buttons);
  }

  /**
   * `now` of look/branches/branches.js; `hot`: number of the hovered text, or null.
   *
   * @param {TreeNow} now
   * @param {number | null} hot
   */
  draw(now, hot) {
    const { rows } = now.tree;
    if (this.rows.length !== rows.length) {
      this.rows = rows.map(newRow);
      this.list.replaceChildren(...this.rows.map(({ row }) => row));
      this.roving.reset();
    }
    rows.forEach((leaf, i) => drawRow(this.rows[i], leaf, now, leaf === hot));
  }
}

/** @param {Event} event */
const leafOf = (event) => {
  const leaf = targetOf(event).closest("li")?.dataset.leaf;
  return leaf === undefined ? null : Number(leaf);
};

function newRow() {
  const row = el("li");
  const button = row.appendChild(el("button"));
  button.type = "button";
  const cells = ["n", "n", "n", "br-act"].map((name) => button.appendChild(el("span", name)));
  return { row, button, cells };
}

/**
 * @param {ReturnType<typeof newRow>} row
 * @param {number} leaf
 * @param {TreeNow} now
 * @param {boolean} hot
 */
function drawRow({ row, button, cells }, leaf, { names, texts, shown, act }, hot) {
  const { total, mean, n } = likelihoodOf(texts[leaf]);
  const figures = [signed(total, 2), signed(mean, 3), count(n)];
  [...figures, act(leaf)].forEach((text, i) => setText(cells[i], text));
  row.dataset.leaf = String(leaf);
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

/**
 * Format a number with a typographic minus; – if unknown.
 *
 * @param {number | null} value
 * @param {number} digits
 */
const signed = (value, digits) => (value === null ? "–" : value.toFixed(digits).replace("-", "−"));

/** Left and right arrows move over the tokens of the core sample. @param {KeyboardEvent} event */
function onKey(event) {
  const d = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
  if (!d || event.ctrlKey || event.metaKey || event.altKey || !view.answer) return;
  event.preventDefault();
  step(d);
}
