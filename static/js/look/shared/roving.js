// @ts-nocheck
// Roving tabindex: one element of a group has the tab stop, arrow keys move among the others.

/**
 * `lines` returns the elements as lines: the keys `next` and `previous` move along a line, `after`
 * and `before` across lines.
 */
export class RovingTabindex {
  constructor(root, keys, lines) {
    this.keys = keys;
    this.lines = lines;
    root.addEventListener("keydown", (event) => this.#onKey(event));
    root.addEventListener("focusin", ({ target }) => this.#setTabStop(target));
  }

  /** Give the tab stop to the last focused element, or to the first. */
  reset() {
    const all = this.lines().flat();
    const tabStop = all.find((node) => node.tabIndex === 0) ?? all[0];
    for (const node of all) node.tabIndex = node === tabStop ? 0 : -1;
  }

  #setTabStop(target) {
    const all = this.lines().flat();
    if (!all.includes(target)) return;
    for (const node of all) node.tabIndex = node === target ? 0 : -1;
  }

  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const lines = this.lines();
    const line = lines.findIndex((nodes) => nodes.includes(event.target));
    if (line < 0) return;
    const to = this.#target(lines, line, lines[line].indexOf(event.target), event.key);
    if (!to) return;
    event.preventDefault();
    to.focus();
  }

  #target(lines, line, at, key) {
    const { next, previous, after, before } = this.keys;
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
        return lines.at(-1).at(-1);
      default:
        return undefined;
    }
  }
}
