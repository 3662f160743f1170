// Text with each token tinted by its loss, navigable by pointer and keyboard.

import { all, el, setVars, targetOf } from "../../ui/dom.js";
import { count } from "../../ui/format.js";
import { palette, shade } from "../../ui/palette.js";
import { MAX_NATS } from "./reading.js";

/** Maximum number of tokens drawn; table and files contain all. */
const MAX_DRAWN = 4000;
/** Minimum contrast of text (WCAG 2.2, 1.4.3). */
const READABLE = 4.5;
/** Distance to the edge after scrolling to a token. */
const MARGIN = 8;

export class LossText {
  /**
   * `onHover(i | null)`: hovered token; `onChoose(i)`: selected token.
   *
   * @param {HTMLElement} box
   * @param {(i: number | null) => void} onHover
   * @param {(i: number) => void} onChoose
   */
  constructor(box, onHover, onChoose) {
    this.box = box;
    this.onChoose = onChoose;
    /** @type {ScoredToken[]} */
    this.tokens = [];
    /** @type {HTMLElement[]} */
    this.nodes = [];
    this.marked = -1;
    box.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") onHover(this.#place(event));
    });
    box.addEventListener("pointerleave", () => onHover(null));
    box.addEventListener("click", (event) => this.#choose(this.#place(event)));
    box.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** Draw tokens (look/loss/reading.js). A text that grows is appended to. @param {ScoredToken[]} tokens */
  draw(tokens) {
    const grows = this.tokens.length && this.tokens.every(({ id }, i) => tokens[i]?.id === id);
    if (!grows) this.#clear();
    const first = this.nodes.length;
    const fresh = tokens.slice(first, MAX_DRAWN).map((token, i) => wordOf(token, first + i));
    this.nodes.push(...fresh);
    const parts = fresh.flatMap((node, i) => [
      spaceOf(tokens[first + i]),
      node,
      breakOf(tokens[first + i]),
    ]);
    this.box.append(...parts.filter((part) => part !== ""));
    this.#rest(tokens.length - MAX_DRAWN);
    if (!first && fresh.length) fresh[0].tabIndex = 0;
    this.tokens = tokens;
    this.#tint();
  }

  #clear() {
    this.box.replaceChildren();
    this.nodes = [];
    this.marked = -1;
  }

  /** @param {number} n */
  #rest(n) {
    this.box.querySelector(".sub")?.remove();
    if (n > 0) this.box.append(el("span", "sub", ` and ${count(n)} more`));
  }

  /** Update the colours of tokens whose loss changed, or of all after a theme change. */
  #tint() {
    const readable = new Map();
    this.nodes.forEach((node, i) => {
      const { loss } = this.tokens[i];
      node.classList.toggle("unknown", loss === null);
      if (loss === null) return;
      const colour = shade(loss / MAX_NATS);
      if (node.dataset.tint === colour) return;
      if (!readable.has(colour)) readable.set(colour, readableOn(colour));
      node.dataset.tint = colour;
      setVars(node, { "--c": colour, "--on": readable.get(colour) });
    });
  }

  /** Highlight the focused token, and scroll to it unless the pointer is here. @param {number} i */
  mark(i) {
    if (i === this.marked) return;
    if (!this.box.matches(":hover")) this.show(i);
    this.nodes[this.marked]?.classList.remove("on");
    const node = this.nodes[i];
    node?.classList.add("on");
    this.#setTabStop(i);
    this.marked = i;
  }

  /** Scroll the text, and nothing around it, to a token. @param {number} i */
  show(i) {
    const node = this.nodes[i];
    if (!node) return;
    const { offsetTop: top, offsetHeight: height } = node;
    const { scrollTop, clientHeight } = this.box;
    const bottom = top + height;
    if (top < scrollTop) this.box.scrollTop = top - MARGIN;
    else if (bottom > scrollTop + clientHeight)
      this.box.scrollTop = bottom + MARGIN - clientHeight;
  }

  /** @param {Event} event */
  #place(event) {
    const node = /** @type {HTMLElement | null} */ (targetOf(event).closest(".ls-tok"));
    return node ? Number(node.dataset.i) : null;
  }

  /** @param {number | null} i */
  #choose(i) {
    if (i !== null) this.onChoose(i);
  }

  /** Roving tabindex: the focused token. @param {number} i */
  #setTabStop(i) {
    if (!this.nodes[i]) return;
    const within = this.box.contains(document.activeElement);
    for (const node of all(this.box, '[tabindex="0"]')) node.tabIndex = -1;
    this.nodes[i].tabIndex = 0;
    if (within && document.activeElement !== this.nodes[i])
      this.nodes[i].focus({ preventScroll: true });
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.#place(event);
    if (at === null) return;
    const last = this.nodes.length - 1;
    /** @type {Record<string, number>} */
    const keys = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last };
    const to = keys[event.key];
    if (to === undefined || to < 0 || to > last) return;
    event.preventDefault();
    this.nodes[at].tabIndex = -1;
    this.nodes[to].tabIndex = 0;
    this.nodes[to].focus();
    this.onChoose(to);
  }
}

/** The space before a word is not tinted. @param {PlainToken} token */
const spaceOf = ({ text, special }) => (special ? "" : (/^ +(?=\S)/.exec(text)?.[0] ?? ""));

/** A line break is shown as a sign, then breaks the line. @param {PlainToken} token */
const breakOf = ({ text, special }) =>
  special ? "" : "\n".repeat((text.match(/\n/g) ?? []).length);

/** @type {Record<string, string>} */
const SIGNS = { "\n": "↵", "\t": "⇥", "\r": "␍" };

/** @param {PlainToken} token @param {number} i */
function wordOf(token, i) {
  const { text, bytes, special, eos } = token;
  const part = bytes && text.includes("\uFFFD");
  const plain = special || eos || part || text === "";
  const shown = text.slice(spaceOf(token).length).replace(/[\n\t\r]/g, (c) => SIGNS[c]);
  const shownText = eos ? "end" : part ? bytes : shown || "·";
  const node = el("span", plain ? "ls-tok special" : "ls-tok", shownText);
  node.dataset.i = String(i);
  node.tabIndex = -1;
  return node;
}

// ---- text on tints -----------------------------------------------------------------------------

/**
 * Return a text colour that is readable on `ground`: one of the page's, else black or white.
 *
 * @param {string} ground
 */
function readableOn(ground) {
  const on = luminance(ground);
  const choices = [palette.ink, palette.plate, "rgb(0, 0, 0)", "rgb(255, 255, 255)"];
  return choices.find((colour) => contrast(luminance(colour), on) >= READABLE) ?? choices[2];
}

/** @param {number} a @param {number} b */
const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);

/** Relative luminance of an sRGB colour (WCAG 2.2). @param {string} colour */
function luminance(colour) {
  const [r, g, b] = colour
    .split(/[^\d.]+/)
    .filter(Boolean)
    .slice(0, 3)
    .map((value) => Number(value) / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
