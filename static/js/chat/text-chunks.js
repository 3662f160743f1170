// Splits a long answer into chunks of whole lines, so that browsers neither lay out nor paint
// chunks that are full or out of sight. Invisible to the reader: a chunk is as wide as the text,
// ends where a line ended, and adds no line break to selected or copied text.

import { el, setVars } from "../ui/dom.js";

/**
 * Tokens per chunk, and tokens at the end left outside chunks because they may still get a mark.
 */
const MIN_TOKENS = 160;
const OPEN_TOKENS = 64;
/** A token this near to the left edge starts a line. */
const EDGE_PX = 1;

/** Line ends move when a text's width changes, for instance by a scroll bar. */
const byBox = new WeakMap();
const watcher = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) byBox.get(target)?.fit(contentRect.width);
});

export class TextChunks {
  #box;
  #nodes;
  /** @type {number | null} */
  #width = null;
  /** All chunks, and the number of tokens in them. @type {HTMLElement[]} */
  #all = [];
  #closed = 0;
  #tried = 0;

  /**
   * `box`: element of the text; `nodes`: elements of its tokens by number, which may grow.
   *
   * @param {HTMLElement} box
   * @param {HTMLElement[]} nodes
   */
  constructor(box, nodes) {
    this.#box = box;
    this.#nodes = nodes;
    byBox.set(box, this);
    watcher.observe(box);
  }

  /** Wrap full lines into chunks if there are enough. Forces a layout only then. */
  close() {
    const ends = [];
    while (this.#nodes.length - this.#tried > MIN_TOKENS + OPEN_TOKENS) {
      const from = ends.at(-1) ?? this.#closed;
      const end = this.#lineStart(from, this.#tried + MIN_TOKENS);
      if (end !== null) ends.push(end);
      this.#tried = end ?? this.#tried + MIN_TOKENS;
    }
    if (!ends.length) return;
    const fresh = ends.map((end) => this.#wrap(end));
    // Chunks out of sight are not laid out any more, so measure their heights first.
    const heights = fresh.map((chunk) => chunk.getBoundingClientRect().height);
    fresh.forEach((chunk, i) => {
      setVars(chunk, { "--chunk-height": `${heights[i]}px` });
      chunk.classList.add("full");
    });
  }

  /** Recompute all chunks after line ends have moved. */
  refit() {
    for (const chunk of this.#all) chunk.replaceWith(...chunk.childNodes);
    this.#all = [];
    this.#closed = this.#tried = 0;
    this.close();
  }

  /** Handle a new width of the text. @param {number} width */
  fit(width) {
    const before = this.#width;
    this.#width = width;
    if (before !== null && before !== width) this.refit();
  }

  /**
   * Number of the last token up to `to` that starts a line, or null if none after `from` does.
   *
   * @param {number} from
   * @param {number} to
   */
  #lineStart(from, to) {
    const { left } = this.#box.getBoundingClientRect();
    for (let i = to; i > from; i -= 1) {
      const [own] = this.#nodes[i].getClientRects();
      const before = [...this.#nodes[i - 1].getClientRects()].at(-1);
      if (own && before && own.left - left < EDGE_PX && own.top > before.top) return i;
    }
    return null;
  }

  /**
   * Wrap everything before token `end` that is in no chunk. The space before `end` is included.
   *
   * @param {number} end
   */
  #wrap(end) {
    const chunk = el("span", "text-chunk");
    const range = document.createRange();
    if (this.#all.length) range.setStartAfter(this.#all[this.#all.length - 1]);
    else range.setStart(this.#box, 0);
    range.setEndBefore(this.#nodes[end]);
    chunk.append(range.extractContents());
    range.insertNode(chunk);
    this.#all.push(chunk);
    this.#closed = end;
    return chunk;
  }
}
