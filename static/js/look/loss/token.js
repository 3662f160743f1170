// @ts-nocheck
// Details of one token: its probability, the alternatives, and the gradient of its loss.

import { el, setText, setVars } from "../../ui/dom.js";
import { count, ordinal, probability, tokenLabel } from "../../ui/format.js";
import { gradientOf, hardest, labelOf } from "./reading.js";

const MAX_OTHERS = 5;
const MAX_HARD = 12;
/** Number of characters shown before a token of the list. */
const BEFORE = 24;

export class LossToken {
  /** Build details and list in `root`. `onChoose(i)`: a token of the list was pressed. */
  constructor(root, onChoose) {
    const box = root.appendChild(el("section", "ls-one"));
    this.one = box;
    box.hidden = true;
    const head = box.appendChild(el("header"));
    this.head = head.appendChild(el("h3"));
    this.sub = head.appendChild(el("p", "sub"));
    this.rows = box.appendChild(el("div", "ls-rows"));
    this.rows.setAttribute("role", "table");
    this.rows.setAttribute("aria-label", "Gradient of the loss on the logits");
    this.note = box.appendChild(el("p", "ls-note"));
    const list = root.appendChild(el("section", "ls-hard"));
    list.hidden = true;
    this.title = list.appendChild(el("h3"));
    this.list = list.appendChild(el("ol"));
    /** Key of the drawn list, which is not rebuilt while unchanged. */
    this.listed = null;
    this.list.addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (button) onChoose(Number(button.dataset.i));
    });
  }

  /**
   * Draw token i of `tokens`; `nameOf(id)` returns a text, `vocabulary` is the number of tokens.
   */
  draw(tokens, i, { nameOf, vocabulary }) {
    const token = tokens[i];
    this.head.replaceChildren();
    this.one.hidden = !token;
    if (!token) return this.#empty("");
    this.head.append(el("span", "tok-no", count(i + 1)), el("span", "tok-word", labelOf(token)));
    if (token.loss === null)
      return this.#empty(i === 0 ? "First token: no context, so no loss." : "Not known yet.");
    const place = token.rank === null ? "" : ` · ${ordinal(token.rank)} of ${count(vocabulary)}`;
    const p = probability(Math.exp(-token.loss));
    setText(this.sub, `${token.loss.toFixed(2)} nats · p ${p}${place}`);
    if (!token.top) return this.#rest("Alternatives are known once the answer is complete.");
    const rows = gradientOf(token, vocabulary, MAX_OTHERS);
    this.rows.replaceChildren(headRow(), ...rows.map((row) => gradientRow(row, nameOf, token)));
    return setText(
      this.note,
      "Gradient on the logit: p − 1 for the token, else p (Bridle 1990)",
    );
  }

  #empty(text) {
    setText(this.sub, text);
    this.#rest("");
  }

  #rest(note) {
    this.rows.replaceChildren();
    setText(this.note, note);
  }

  /** List the tokens with the largest losses, from position `from` on, under `title`. */
  drawHardest(tokens, from, title) {
    setText(this.title, title);
    this.list.parentNode.hidden = !tokens.length;
    const places = hardest(tokens, from, MAX_HARD);
    const key = places.map((i) => `${i} ${tokens[i].id} ${tokens[i].loss}`).join();
    if (key === this.listed) return;
    this.listed = key;
    this.list.replaceChildren(...places.map((i) => hardRow(tokens, i)));
  }
}

function cell(role, className, text) {
  const node = el("span", className, text);
  node.setAttribute("role", role);
  return node;
}

function row(className, cells) {
  const node = el("div", className);
  node.setAttribute("role", "row");
  node.append(...cells);
  return node;
}

const headRow = () =>
  row("ls-head", [
    cell("columnheader", "", "token"),
    cell("columnheader", "n", "p"),
    cell("columnheader", "n", "gradient"),
    cell("columnheader", "ls-sides", "↑ raised · lowered ↓"),
  ]);

function gradientRow({ id, p, gradient, count: n }, nameOf, token) {
  const own = id === token.id;
  const text = () => (own ? labelOf(token) : tokenLabel(nameOf(id), "–"));
  const name = id === null ? `${count(n)} more` : text();
  const bar = cell("cell", "ls-bar", "");
  bar.append(setVars(el("i"), { "--g": Math.abs(gradient) }));
  bar.setAttribute("aria-label", gradient < 0 ? "raised" : "lowered");
  return row(own ? "own" : id === null ? "others" : "", [
    cell("rowheader", "w", name),
    cell("cell", "n", probability(p)),
    cell("cell", "n", `${gradient < 0 ? "−" : "+"}${Math.abs(gradient).toFixed(3)}`),
    bar,
  ]);
}

/** Join texts; incomplete characters become an ellipsis. */
const textOf = (tokens) => tokens.map(({ text }) => text.replace(/\uFFFD+/g, "…")).join("");

function hardRow(tokens, i) {
  const item = el("li");
  const button = item.appendChild(el("button"));
  button.type = "button";
  button.dataset.i = i;
  const before = textOf(tokens.slice(Math.max(0, i - 8), i)).replace(/\s+/g, " ");
  button.append(
    el("span", "ls-before", before.slice(-BEFORE)),
    el("b", "", labelOf(tokens[i])),
    el("span", "n", tokens[i].loss.toFixed(2)),
  );
  return item;
}
