// Text of an answer on the page: one element per token, appended once per frame, with marks of
// changed settings.

import { el, setText } from "../ui/dom.js";
import { describeChange } from "../settings/sampling-settings.js";
import { TextChunks } from "./text-chunks.js";
import { describeMoved } from "./cache-reuse.js";
import { describeDropped, describeSlid, describeSummarized } from "./truncation.js";

/** Probabilities at or below which a token gets one, two or three underlines. */
const UNDERLINE = [0.4, 0.2, 0.08];

export class AnswerText {
  /** @type {TextChunks | null} */
  #chunks = null;
  #edition = 0;
  /** Numbers of segments, tokens and marks drawn so far. */
  #segment = 0;
  #shown = 0;
  #marked = 0;
  /** The labels of marks, by the index of their token. @type {Map<number, HTMLElement>} */
  #marks = new Map();
  /** The note of `#drawDropped`, or null. @type {HTMLElement | null} */
  #dropped = null;

  constructor() {
    this.box = el("p", "answer");
    /** The answer drawn last. @type {Answer | null} */
    this.answer = null;
    /** The elements of its tokens by number. @type {HTMLElement[]} */
    this.nodes = [];
  }

  /** Draw what is new of an answer. `given`: text that it completes. @param {Answer} answer */
  draw(answer, given = "") {
    if (this.answer !== answer || this.#edition !== answer.edition) this.#restart(answer, given);
    this.#drawDropped(answer);
    this.#drawTokens(answer);
    this.#drawMarks(answer);
    this.#chunks?.close();
  }

  /** Remove everything. */
  clear() {
    this.answer = null;
    this.nodes = [];
    this.box.replaceChildren();
  }

  /** Handle new widths of words. */
  refit() {
    this.#chunks?.refit();
  }

  /** @param {Answer} answer @param {string} given */
  #restart(answer, given) {
    this.clear();
    if (given) this.box.append(el("span", "given", given));
    this.answer = answer;
    this.#edition = answer.edition;
    this.#segment = this.#shown = this.#marked = 0;
    this.#marks = new Map();
    this.#dropped = null;
    this.#chunks = new TextChunks(this.box, this.nodes);
  }

  /**
   * Say before the answer which turns it was written without, known once it is accepted, or with a
   * summary of, how many tokens have left the context since, and how many of its prompt were moved.
   *
   * @param {Answer} answer
   */
  #drawDropped(answer) {
    const left = [describeDropped, describeSummarized, describeSlid].map((say) => say(answer));
    const words = [...left, describeMoved(answer)].filter(Boolean).join("; ");
    if (words === (this.#dropped?.textContent ?? "")) return;
    if (!this.#dropped) {
      this.#dropped = el("span", "mark-change dropped");
      this.box.prepend(this.#dropped);
    }
    this.#dropped.title = left.some(Boolean) ? "The conversation is longer than the context." : "";
    setText(this.#dropped, words);
  }

  /** @param {Answer} answer */
  #drawTokens(answer) {
    const { box } = this;
    const fragment = document.createDocumentFragment();
    for (; this.#segment < answer.segments.length; this.#segment += 1) {
      const segment = answer.segments[this.#segment];
      if (segment.textOnly !== null) {
        if (segment.edited) fragment.append(el("span", "mark-change", "edited"));
        fragment.append(el("span", segment.edited ? "plain edited" : "plain", segment.textOnly));
        continue;
      }
      for (const end = segment.base + segment.nTokens; this.#shown < end; this.#shown += 1)
        this.nodes.push(putToken(fragment, answer, this.#shown));
      if (segment === answer.segment) break; // it may grow
    }
    const last = box.lastElementChild;
    box.insertBefore(fragment, last?.matches(".caret") ? last : null);
  }

  /**
   * Draw marks before the first token they apply to; earlier marks of a drag have no label.
   *
   * @param {Answer} answer
   */
  #drawMarks({ marks }) {
    for (; this.#marked < marks.length; this.#marked += 1) {
      const { index, shown } = marks[this.#marked];
      const token = this.nodes[index];
      if (!token) break;
      let mark = this.#marks.get(index);
      if (!mark) {
        mark = el("span", "mark-change");
        mark.dataset.at = String(index);
        this.#marks.set(index, mark);
        const { previousSibling: space } = token;
        token.parentNode?.insertBefore(mark, space?.nodeType === Node.TEXT_NODE ? space : token);
      }
      setText(mark, shown.map(describeChange).join(", "));
    }
    this.#marked = Math.max(0, this.#marked - 2); // the last ones may still change
  }
}

/** @param {DocumentFragment} parent @param {Answer} answer @param {number} index */
function putToken(parent, answer, index) {
  const { segment } = answer.tokens[index];
  if (segment.base === index && segment !== answer.segments[0])
    parent.append(el("span", "mark-change", "continued"));
  const { text, logprob, eos, draft, watermark } = answer.tokens[index];
  const space = /^ +(?=\S)/.exec(text)?.[0] ?? "";
  if (space) parent.append(space);
  const node = el(
    "span",
    eos ? "tok eos" : text === "" ? "tok part" : "tok",
    text.slice(space.length),
  );
  const p = Math.exp(logprob);
  node.dataset.i = String(index);
  node.dataset.q = String(UNDERLINE.filter((bound) => p <= bound).length);
  if (watermark) node.dataset.green = String(watermark.green);
  if (draft) node.dataset.draft = draft.accepted ? "accepted" : "rejected";
  node.tabIndex = -1;
  parent.append(node);
  return node;
}
