// Details of one token: its probability, the alternatives, and the gradient of its loss.

import { el, setText, setVars, targetOf } from "../../ui/dom.js";
import { count, ordinal, probability, tokenLabel } from "../../ui/format.js";
import { gradientOf, hardest, labelOf } from "./reading.js";

const MAX_OTHERS = 5;
const MAX_HARD = 12;
/** Number of characters shown before a token of the list. */
const BEFORE = 24;

export class LossToken {
  /**
   * Build details and list in `root`. `onChoose(i)`: a token of the list was pressed.
   *
   * @param {HTMLElement} root
   * @param {(i: number) => void} onChoose
   */
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
    this.hard = root.appendChild(el("section", "ls-hard"));
    this.hard.hidden = true;
    this.title = this.hard.appendChild(el("h3"));
    this.list = this.hard.appendChild(el("ol"));
    /** Key of the drawn list, which is not rebuilt while unchanged. @type {string | null} */
    this.listed = null;
    this.list.addEventListener("click", (event) => {
      const button = targetOf(event).closest("button");
      if (button) onChoose(Number(button.dataset.i));
    });
  }

  /**
   * Draw token i of `tokens`; `nameOf(id)` returns a text, `vocabulary` is the number of tokens.
   *
   * @param {ScoredToken[]} tokens
   * @param {number} i
   * @param {{nameOf: (id: number) => string, vocabulary: number}} options
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

  /** @param {string} text */
  #empty(text) {
    setText(this.sub, text);
    this.#rest("");
  }

  /** @param {string} note */
  #rest(note) {
    this.rows.replaceChildren();
    setText(this.note, note);
  }

  /**
   * List the tokens with the largest losses, from position `from` on, under `title`.
   *
   * @param {ScoredToken[]} tokens
   * @param {number} from
   * @param {string} title
   */
  drawHardest(tokens, from, title) {
    setText(this.title, title);
    this.hard.hidden = !tokens.length;
    const places = hardest(tokens, from, MAX_HARD);
    const key = places.map((i) => `${i} ${tokens[i].id} ${tokens[i].loss}`).join();
    if (key === this.listed) return;
    this.listed = key;
    this.list.replaceChildren(...places.map((i) => hardRow(tokens, i)));
  }
}

/** @param {string} role @param {string} className @param {string} text */
function cell(role, className, text) {
  const node = el("span", className, text);
  node.setAttribute("role", role);
  return node;
}

/** @param {string} className @param {HTMLElement[]} cells */
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

/** @param {GradientRow} row @param {(id: number) => string} nameOf @param {ScoredToken} token */
function gradientRow({ id, p, gradient, count: n }, nameOf, token) {
  const own = id === token.id;
  if (id === null) return rowOf("others", `${count(n)} more`, p, gradient);
  return rowOf(own ? "own" : "", own ? labelOf(token) : tokenLabel(nameOf(id), "–"), p, gradient);
}

/** @param {string} className @param {string} name @param {number} p @param {number} gradient */
function rowOf(className, name, p, gradient) {
  const bar = cell("cell", "ls-bar", "");
  bar.append(setVars(el("i"), { "--g": Math.abs(gradient) }));
  bar.setAttribute("aria-label", gradient < 0 ? "raised" : "lowered");
  return row(className, [
    cell("rowheader", "w", name),
    cell("cell", "n", probability(p)),
    cell("cell", "n", `${gradient < 0 ? "−" : "+"}${Math.abs(gradient).toFixed(3)}`),
    bar,
  ]);
}

/** Join texts; incomplete characters become an ellipsis. @param {ScoredToken[]} tokens */
const textOf = (tokens) => tokens.map(({ text }) => text.replace(/\uFFFD+/g, "…")).join("");

/** @param {ScoredToken[]} tokens @param {number} i */
function hardRow(tokens, i) {
  const item = el("li");
  const button = item.appendChild(el("button"));
  button.type = "button";
  button.dataset.i = String(i);
  const before = textOf(tokens.slice(Math.max(0, i - 8), i)).replace(/\s+/g, " ");
  button.append(
    el("span", "ls-before", before.slice(-BEFORE)),
    el("b", "", labelOf(tokens[i])),
    el("span", "n", (tokens[i].loss ?? NaN).toFixed(2)),
  );
  return item;
}
