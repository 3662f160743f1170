// A long answer in stretches of whole lines. A browser lays out and paints a paragraph as one thing;
// lines that are full stay as they are, so they are set apart: whatever is written after them, and
// all that is out of sight, then costs nothing. Nothing is seen of it: a stretch is as wide as the
// text, ends where a line ended, and adds no line break to what is selected or copied.

import { el, setVars } from "./dom.js";

/** So many tokens are set apart at a time, and this many stay, which may still get a mark. */
const LEAST_TOKENS = 160;
const OPEN_TOKENS = 64;
/** A token this near to the left edge begins a line. */
const EDGE_PX = 1;

/** Lines end elsewhere when a text's width changes, as it does when a scroll bar appears. */
const byBox = new WeakMap();
const watcher = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) byBox.get(target)?.fit(contentRect.width);
});

export class Stretches {
  #box;
  #nodes;
  #width = null;
  /** Those there are, and how many tokens are in them. */
  #all = [];
  #closed = 0;
  #tried = 0;

  /** `box`: the element of the text; `nodes`: its tokens' elements by number, which may grow. */
  constructor(box, nodes) {
    this.#box = box;
    this.#nodes = nodes;
    byBox.set(box, this);
    watcher.observe(box);
  }

  /** Set full lines apart, if there are enough of them. Asks for the layout only then. */
  close() {
    const ends = [];
    while (this.#nodes.length - this.#tried > LEAST_TOKENS + OPEN_TOKENS) {
      const from = ends.at(-1) ?? this.#closed;
      const end = this.#lineStart(from, this.#tried + LEAST_TOKENS);
      if (end !== null) ends.push(end);
      this.#tried = end ?? this.#tried + LEAST_TOKENS;
    }
    if (!ends.length) return;
    const fresh = ends.map((end) => this.#wrap(end));
    // Out of sight they are not laid out any more, so their heights have to be known before.
    const heights = fresh.map((stretch) => stretch.getBoundingClientRect().height);
    fresh.forEach((stretch, i) => {
      setVars(stretch, { "--high": `${heights[i]}px` });
      stretch.classList.add("full");
    });
  }

  /** Where lines end may have changed: find it out anew. */
  refit() {
    for (const stretch of this.#all) stretch.replaceWith(...stretch.childNodes);
    this.#all = [];
    this.#closed = this.#tried = 0;
    this.close();
  }

  /** The text is this wide now. */
  fit(width) {
    const before = this.#width;
    this.#width = width;
    if (before !== null && before !== width) this.refit();
  }

  /** Number of the last token up to `to` that begins a line, null when none after `from` does. */
  #lineStart(from, to) {
    const { left } = this.#box.getBoundingClientRect();
    for (let i = to; i > from; i -= 1) {
      const [own] = this.#nodes[i].getClientRects();
      const before = [...this.#nodes[i - 1].getClientRects()].at(-1);
      if (own && before && own.left - left < EDGE_PX && own.top > before.top) return i;
    }
    return null;
  }

  /** Everything that stands open before token `end`. The space before it hangs from its last line. */
  #wrap(end) {
    const stretch = el("span", "stretch");
    const range = document.createRange();
    if (this.#all.length) range.setStartAfter(this.#all.at(-1));
    else range.setStart(this.#box, 0);
    range.setEndBefore(this.#nodes[end]);
    stretch.append(range.extractContents());
    range.insertNode(stretch);
    this.#all.push(stretch);
    this.#closed = end;
    return stretch;
  }
}
