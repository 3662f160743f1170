// Words of the context, underlined by their attention weight.

import { el, setText, targetOf } from "../../ui/dom.js";
import { count, percent } from "../../ui/format.js";
import { shareColour } from "../shared/share-colours.js";

/** @typedef {{from: number, to: number, gap: boolean, share?: number}} ShownPart */

/** A longer context is shortened to parts around the focused token and the largest weights. */
export const MAX_WORDS = 500;
const START = 4;
const AROUND = 150;
const STRONGEST = 24;
const BESIDE = 3;
/** Number of words with a printed weight, and the minimum weight. */
const MAX_NUMBERS = 14;
const MIN_NUMBER = 0.03;
/** Vertical position (share of the box) to which a word is scrolled. */
const FOCUS_AT = 0.5;

/**
 * Return the parts to show, in order: {from, to, gap}, `to` exclusive. A `gap` is elided; its
 * `share` is the sum of its weights up to `position`. `line` as returned by `lineOf`.
 *
 * @param {Float32Array} line
 * @param {number} position
 * @param {number} [most]
 */
export function partsOf(line, position, most = MAX_WORDS) {
  const n = line.length;
  if (n <= most) return [{ from: 0, to: n, gap: false }];
  const shown = new Uint8Array(n);
  /** @param {number} from @param {number} to */
  const show = (from, to) => shown.fill(1, Math.max(0, from), Math.min(n, to));
  show(0, START);
  show(position - AROUND, position + AROUND);
  for (const at of strongest(line, STRONGEST)) show(at - BESIDE, at + BESIDE + 1);
  /** @type {ShownPart[]} */
  const parts = [];
  for (let at = 0; at < n; at += 1) {
    const gap = !shown[at];
    const last = parts.at(-1);
    if (last?.gap === gap) last.to = at + 1;
    else parts.push({ from: at, to: at + 1, gap });
  }
  for (const part of parts)
    if (part.gap) part.share = shareOf(line, part.from, Math.min(part.to, position + 1));
  return parts;
}

/** @param {Float32Array} line @param {number} from @param {number} to */
function shareOf(line, from, to) {
  let sum = 0;
  for (let at = from; at < to; at += 1) sum += line[at];
  return sum;
}

/** Positions of the largest weights, largest first. @param {Float32Array} line @param {number} most */
export function strongest(line, most) {
  const known = Array.from(line.keys()).filter((at) => line[at] > 0);
  return known.sort((a, b) => line[b] - line[a] || a - b).slice(0, most);
}

/**
 * Positions with a printed weight; two must not be adjacent under short words.
 *
 * @param {Float32Array} line
 * @param {string[]} texts
 */
function numbered(line, texts) {
  const places = new Set();
  for (const at of strongest(line, MAX_NUMBERS)) {
    if (line[at] < MIN_NUMBER) break;
    /** @param {number} other */
    const tight = (other) => places.has(other) && texts[at].length + texts[other].length < 7;
    if (!tight(at - 1) && !tight(at + 1)) places.add(at);
  }
  return places;
}

const SPECIAL = /^<[^\s<>]+>$/;
/** @type {Record<string, string>} */
const UNSEEN = { "\n": "↵", "\t": "⇥", "\r": "␍" };

/** Position of the word that an event is about, or null. @param {Event} event */
function positionOf(event) {
  const word = /** @type {HTMLElement | null} */ (targetOf(event).closest("[data-at]"));
  return word ? Number(word.dataset.at) : null;
}

export class ContextWords {
  /**
   * `onPoint(position | null)`: hovered word; `onPin(position)`: selected word.
   *
   * @param {HTMLElement} box
   * @param {(position: number | null) => void} onPoint
   * @param {(position: number) => void} onPin
   */
  constructor(box, onPoint, onPin) {
    this.box = box;
    this.onPoint = onPoint;
    this.onPin = onPin;
    /**
     * Elements by position, and the texts they were built from.
     *
     * @type {Map<number, HTMLElement>}
     */
    this.nodes = new Map();
    /** Colours of the elements' underlines. @type {WeakMap<HTMLElement, string>} */
    this.tints = new WeakMap();
    /** @type {HTMLElement[]} */
    this.gaps = [];
    this.made = { texts: /** @type {string[]} */ ([]), key: "", whole: false };
    /** @type {ShownPart[] | null} */
    this.parts = null;
    /** @type {HTMLElement | null} */
    this.on = null;
    /** Target of arrow keys that is not drawn yet. @type {number | null} */
    this.wanted = null;
    this.refocus = false;
    this.pointing = false;
    box.addEventListener("pointerover", (event) => {
      if (event.pointerType === "touch") return;
      this.pointing = true;
      const at = positionOf(event);
      if (at !== null) onPoint(at);
    });
    box.addEventListener("pointerleave", () => {
      this.pointing = false;
      onPoint(null);
    });
    box.addEventListener("click", (event) => {
      const at = positionOf(event);
      if (at !== null) onPin(at);
    });
    box.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /**
   * `texts` of all tokens; `line` as returned by `lineOf` for the token at `position`.
   *
   * @param {{texts: string[], line: Float32Array, position: number}} now
   */
  draw({ texts, line, position }) {
    const parts = this.#parts(texts, line, position);
    const key = parts.map(({ from, to, gap }) => `${from}-${to}${gap ? "gap" : ""}`).join();
    if (this.#isBeginOf(texts, parts))
      for (let at = this.made.texts.length; at < texts.length; at += 1)
        this.#add(this.box, texts[at], at);
    else if (key !== this.made.key || !sameTexts(texts, this.made.texts)) this.#build(texts, parts);
    this.made = { texts, key, whole: parts.length === 1 };
    this.#tint(texts, line, parts, position);
    this.#follow(position);
  }

  /**
   * Is the shown text a prefix of the new one, as during generation?
   *
   * @param {string[]} texts
   * @param {ShownPart[]} parts
   */
  #isBeginOf(texts, parts) {
    const { texts: shown, whole } = this.made;
    if (!whole || parts.length > 1 || shown.length >= texts.length) return false;
    return shown.every((text, i) => text === texts[i]);
  }

  /**
   * Keep the layout while the pointer is over the words.
   *
   * @param {string[]} texts
   * @param {Float32Array} line
   * @param {number} position
   */
  #parts(texts, line, position) {
    if (this.pointing && this.parts && sameTexts(texts, this.made.texts)) return this.parts;
    this.parts = partsOf(line, position);
    return this.parts;
  }

  /** @param {string[]} texts @param {ShownPart[]} parts */
  #build(texts, parts) {
    const hadFocus = this.box.contains(document.activeElement);
    this.nodes.clear();
    this.gaps = [];
    this.on = null;
    const all = document.createDocumentFragment();
    for (const part of parts) {
      if (part.gap) this.gaps.push(all.appendChild(el("span", "aw-gap")));
      else for (let at = part.from; at < part.to; at += 1) this.#add(all, texts[at], at);
    }
    this.box.replaceChildren(all);
    this.refocus = hadFocus;
  }

  /** @param {ParentNode & Node} parent @param {string} text @param {number} at */
  #add(parent, text, at) {
    const space = /^ +(?=\S)/.exec(text)?.[0] ?? "";
    const ends = text.endsWith("\n");
    const shown = text.slice(space.length).replace(/[\n\t\r]/g, (c) => UNSEEN[c]);
    if (space) parent.append(space);
    const node = el("span", SPECIAL.test(text) ? "aw special" : "aw", shown.replace(/^ +$/, "␣"));
    node.dataset.at = String(at);
    node.tabIndex = -1;
    parent.append(node);
    if (ends) parent.append(el("br"));
    this.nodes.set(at, node);
  }

  /**
   * @param {string[]} texts
   * @param {Float32Array} line
   * @param {ShownPart[]} parts
   * @param {number} position
   */
  #tint(texts, line, parts, position) {
    const places = numbered(line, texts);
    for (const [at, node] of this.nodes) {
      const weight = line[at];
      const known = !Number.isNaN(weight);
      const colour = known ? shareColour(weight) : "";
      if ((this.tints.get(node) ?? "") !== colour) node.style.borderBottomColor = colour;
      this.tints.set(node, colour);
      node.classList.toggle("off", !known);
      this.#number(node, places.has(at) ? percent(weight) : "");
    }
    const gaps = parts.filter(({ gap }) => gap);
    this.gaps.forEach((node, i) => setText(node, gapWords(gaps[i], position)));
  }

  /** @param {HTMLElement} node @param {string} text */
  #number(node, text) {
    const small = node.lastElementChild;
    if (text === "") small?.remove();
    else if (small) setText(small, text);
    else node.append(el("small", "", text));
  }

  /** Highlight the focused word, and scroll to it unless it is under the pointer. @param {number} position */
  #follow(position) {
    const node = this.nodes.get(position) ?? null;
    if (position === this.wanted) this.wanted = null;
    if (node === this.on) return;
    const had = this.refocus || this.on === document.activeElement;
    this.refocus = false;
    this.on?.classList.remove("on");
    if (this.on) this.on.tabIndex = -1;
    this.on = node;
    if (!node) return;
    node.classList.add("on");
    node.tabIndex = 0;
    if (had) node.focus({ preventScroll: true });
    if (!this.pointing) intoView(this.box, node);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const focused = positionOf(event);
    if (event.ctrlKey || event.metaKey || event.altKey || focused === null) return;
    const all = [...this.nodes.keys()];
    const at = all.indexOf(this.wanted ?? focused);
    /** @type {Record<string, number>} */
    const keys = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 };
    const to = keys[event.key];
    if (all[to] === undefined) return;
    event.preventDefault();
    this.wanted = all[to];
    this.onPin(all[to]);
  }
}

/** @param {ShownPart} shownPart @param {number} position */
function gapWords({ from, to, share }, position) {
  const words = `… ${count(to - from)} words`;
  if (from <= position) return ` ${words}, ${percent(share ?? NaN)} % … `;
  return ` ${words} … `;
}

/** @param {string[]} a @param {string[]} b */
const sameTexts = (a, b) => a.length === b.length && a.every((text, i) => text === b[i]);

/**
 * Scroll to a node without cutting a line at the top: its underline is in the next line's box.
 *
 * @param {HTMLElement} box
 * @param {HTMLElement} node
 */
function intoView(box, node) {
  const within = box.getBoundingClientRect();
  const at = node.getBoundingClientRect();
  const line = parseFloat(getComputedStyle(box).lineHeight);
  if (at.top >= within.top && at.bottom + line / 2 <= within.bottom) return;
  const wanted = box.scrollTop + at.top - within.top - within.height * FOCUS_AT;
  const lines = Math.round(wanted / line);
  box.scrollTop = lines > 0 ? lines * line + line / 3 : 0;
}
