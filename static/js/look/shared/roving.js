// Roving tabindex: one element of a group has the tab stop, arrow keys move among the others.

import { targetOf } from "../../ui/dom.js";

/**
 * `lines` returns the elements as lines: the keys `next` and `previous` move along a line, `after`
 * and `before` across lines.
 */
export class RovingTabindex {
  /**
   * @param {HTMLElement} root
   * @param {Partial<Record<"next" | "previous" | "after" | "before", string>>} keys
   * @param {() => HTMLElement[][]} lines
   */
  constructor(root, keys, lines) {
    this.keys = keys;
    this.lines = lines;
    root.addEventListener("keydown", (event) => this.#onKey(event));
    root.addEventListener("focusin", (event) => this.#setTabStop(targetOf(event)));
  }

  /** Give the tab stop to the last focused element, or to the first. */
  reset() {
    const all = this.lines().flat();
    const tabStop = all.find((node) => node.tabIndex === 0) ?? all[0];
    for (const node of all) node.tabIndex = node === tabStop ? 0 : -1;
  }

  /** @param {HTMLElement} target */
  #setTabStop(target) {
    const all = this.lines().flat();
    if (!all.includes(target)) return;
    for (const node of all) node.tabIndex = node === target ? 0 : -1;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const lines = this.lines();
    const own = targetOf(event);
    const line = lines.findIndex((nodes) => nodes.includes(own));
    if (line < 0) return;
    const to = this.#target(lines, line, lines[line].indexOf(own), event.key);
    if (!to) return;
    event.preventDefault();
    to.focus();
  }

  /** @param {HTMLElement[][]} lines @param {number} line @param {number} at @param {string} key */
  #target(lines, line, at, key) {
    const { next, previous, after, before } = this.keys;
    /** @param {HTMLElement[] | undefined} nodes */
    const beside = (nodes) => nodes?.[Math.min(at, nodes.length - 1)];
    switch (key) {
      case next:
        return lines[line][at + 1];
      case previous:
        return lines[line][at - 1];
      case after:
        return beside(lines[line + 1]);
      case before:
        return beside(lines[line - 1]);
      case "Home":
        return lines[0][0];
      case "End":
        return lines.at(-1)?.at(-1);
      default:
        return undefined;
    }
  }
}
