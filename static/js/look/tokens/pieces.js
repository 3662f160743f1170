// List of tokens with their ids, in rows by role.

import { el, setText, targetOf } from "../../ui/dom.js";
import { count, plural } from "../../ui/format.js";

/** A token of the prompt or of the comparison. @typedef {ToPage.Piece & Partial<ToPage.PromptPiece>} AnyPiece */
/** A token on the page; `own`: of the prompt, not of the comparison. */
/** @typedef {{node: HTMLElement, token: AnyPiece, i: number, own: boolean}} Drawn */

/** Maximum number of tokens drawn; table and files contain all. */
const MAX_PIECES = 3000;
const HINT = "Point at a token or tap it, or use the arrow keys.";

export class Pieces {
  /**
   * `onHover(i | null)`: hovered token of the prompt.
   *
   * @param {HTMLElement} list
   * @param {HTMLElement} detail
   * @param {(i: number | null) => void} onHover
   */
  constructor(list, detail, onHover) {
    this.list = list;
    this.detail = detail;
    this.onHover = onHover;
    /** @type {ToPage.Tokenized | null | undefined} */
    this.cut = undefined;
    /** In reading order. @type {Drawn[]} */
    this.all = [];
    /** @type {Drawn | null} */
    this.marked = null;
    list.addEventListener("pointerover", (event) => this.#look(targetOf(event).closest("li")));
    list.addEventListener("pointerleave", () => this.#look(null));
    list.addEventListener("focusin", (event) => this.#look(targetOf(event).closest("li")));
    list.addEventListener("focusout", () => this.#look(null));
    list.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** Draw the answer of `tokenize`, or nothing. @param {ToPage.Tokenized | null} cut */
  draw(cut) {
    if (cut === this.cut) return;
    this.cut = cut;
    this.all = [];
    this.marked = null;
    const rows = cut ? [...this.#prompt(cut), ...this.#other(cut)] : [];
    this.list.replaceChildren(...rows);
    if (this.all.length) this.all[0].node.tabIndex = 0;
    const empty = "Type a prompt to see its tokens as the model reads them.";
    setText(this.detail, cut ? HINT : empty);
  }

  /** Highlight the token focused in the core sample; null for none. @param {number | null} i */
  mark(i) {
    const piece = this.all.find((one) => one.own && one.i === i) ?? null;
    if (piece === this.marked) return;
    this.marked?.node.classList.remove("on");
    piece?.node.classList.add("on");
    this.marked = piece;
    this.#describe(piece);
  }

  /**
   * Rows of the prompt: tokens of one message, or of the template between messages.
   *
   * @param {ToPage.Tokenized} tokenized
   */
  #prompt({ tokens }) {
    /** @type {ReturnType<typeof row>[]} */
    const rows = [];
    const chat = tokens.some(({ role }) => role);
    tokens.slice(0, MAX_PIECES).forEach((token, i) => {
      const before = tokens[i - 1];
      if (!before || before.role !== token.role || before.message !== token.message)
        rows.push(row(token.role || (chat ? "template" : "prompt")));
      this.#add(rows[rows.length - 1].list, token, i, true);
    });
    if (tokens.length > MAX_PIECES) {
      const rest = row("…");
      rest.list.append(el("li", "sub", `and ${count(tokens.length - MAX_PIECES)} more`));
      rows.push(rest);
    }
    return rows.map(({ box }) => box);
  }

  /** Row of the same text with the comparison tokenizer. @param {ToPage.Tokenized} tokenized */
  #other({ compare }) {
    const { box, list } = row(compare.name);
    box.classList.add("other");
    compare.tokens.slice(0, MAX_PIECES).forEach((token, i) => this.#add(list, token, i, false));
    return [box];
  }

  /** @param {HTMLElement} list @param {AnyPiece} token @param {number} i @param {boolean} own */
  #add(list, token, i, own) {
    const node = el("li", token.special ? "pc special" : "pc");
    node.append(face(token), el("span", "id", String(token.id)));
    node.tabIndex = -1;
    list.append(node);
    this.all.push({ node, token, i, own });
  }

  /** @param {HTMLElement | null} node */
  #look(node) {
    const piece = this.all.find((one) => one.node === node);
    this.onHover(piece?.own ? piece.i : null);
    this.#describe(piece ?? this.marked);
  }

  /** @param {Drawn | null} piece */
  #describe(piece) {
    setText(this.detail, piece ? describe(piece) : HINT);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const own = targetOf(event);
    const at = this.all.findIndex(({ node }) => node === own);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.all.length - 1;
    /** @type {Record<string, number>} */
    const keys = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last };
    const to = keys[event.key];
    if (to === undefined || to < 0 || to > last) return;
    event.preventDefault();
    own.tabIndex = -1;
    this.all[to].node.tabIndex = 0;
    this.all[to].node.focus();
  }
}

/** @param {string} name */
function row(name) {
  const box = el("section", "tk-row");
  const list = el("ol");
  list.setAttribute("aria-label", `Tokens: ${name}`);
  box.append(el("h3", "", name), list);
  return { box, list };
}

/** @type {Record<string, string>} */
const UNSEEN = { "\n": "↵", "\t": "⇥", "\r": "␍", " ": "·" };

/**
 * Show a token with whitespace made visible, or its bytes if they are no valid text.
 *
 * @param {AnyPiece} piece
 */
export function face({ text, bytes }) {
  const node = el("span", "t");
  if (text.includes("\uFFFD") && bytes) {
    node.className = "t raw";
    node.textContent = pairs(bytes);
    return node;
  }
  for (const part of text.split(/([\n\t\r]|^ +| +$)/)) {
    if (part === "") continue;
    const unseen = /^[\n\t\r ]+$/.test(part);
    const shown = unseen ? part.replace(/./gs, (c) => UNSEEN[c]) : part;
    node.append(unseen ? el("i", "", shown) : shown);
  }
  return node;
}

/** @param {string} hex */
const pairs = (hex) => hex.replace(/..(?!$)/g, "$& ");

/** @param {Drawn} drawn */
function describe({ token, i, own }) {
  const { id, text, bytes, special, role } = token;
  const parts = [`token ${count(i + 1)}`, `id ${count(id)}`, JSON.stringify(text)];
  if (special) parts.push("special token, adds no text");
  else parts.push(`${plural(bytes.length / 2, "byte")}: ${pairs(bytes)}`);
  if (own && role) parts.push(role);
  return parts.join(" · ");
}
