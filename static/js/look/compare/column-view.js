// One column of a comparison on the page: its settings in words, its buttons, its text.

import { AnswerText } from "../../chat/answer-text.js";
import { pauseOf } from "../../chat/pace.js";
import { isPrefilling, isQueued, reasonOf, tokensPerSecond, withReason } from "../../chat/status-line.js";
import { el, setAttr, setText, targetOf } from "../../ui/dom.js";
import { isSendKey } from "../../ui/enter-key.js";
import { figure, plural } from "../../ui/format.js";
import { newIconButton } from "../../ui/icon-button.js";

/**
 * What the page does at the controls of a column, by its number.
 *
 * @typedef {{select: (number: number) => void, stop: (number: number) => void,
 *   takeOver: (number: number) => void, remove: (number: number) => void,
 *   write: (number: number, prompt: string) => void, send: () => void,
 *   point: (number: number, index: number | null) => void,
 *   choose: (number: number, index: number) => void}} ColumnActs
 */

/**
 * @typedef {{words: string, prompt: string, selected: boolean, parting: number | null,
 *   focus: number | null, whyNotTake: string, removable: boolean}} ColumnDrawing
 */

/** The text scrolls with its end while that is this near. */
const NEAR_END_PX = 30;

export class ColumnView {
  #text = new AnswerText();
  #stick = true;
  /** @type {HTMLElement | null} */
  #focused = null;

  /**
   * `number`: of the column; `on`: {select, stop, takeOver, remove, write, point, choose} take it first;
   * `send()` starts the comparison.
   *
   * @param {number} number
   * @param {ColumnActs} on
   */
  constructor(number, on) {
    const letter = "ABCD"[number];
    this.node = el("section", "cmp-column");
    this.node.setAttribute("aria-label", `Column ${letter}`);
    this.pick = el("button", "cmp-pick");
    this.pick.type = "button";
    this.pick.append(el("b", "", letter));
    this.words = this.pick.appendChild(el("span"));
    this.pick.addEventListener("click", () => on.select(number));
    this.stop = newIconButton("stop", `Stop ${letter}`, () => on.stop(number));
    this.take = newIconButton("more", `Take ${letter} over into the conversation`, () =>
      on.takeOver(number),
    );
    this.remove = newIconButton("close", `Remove column ${letter}`, () => on.remove(number));
    const acts = el("span", "cmp-acts");
    acts.append(this.stop, this.take, this.remove);
    const head = this.node.appendChild(el("header"));
    head.append(this.pick, acts);
    /** Of its own prompt; null: the first column shows that of all. */
    this.field = number ? newPrompt(letter) : null;
    this.prompt = this.node.appendChild(this.field ?? el("p", "cmp-prompt"));
    this.status = this.node.appendChild(el("p", "ellipsis cmp-status"));
    this.scroller = this.node.appendChild(el("div", "cmp-text"));
    this.scroller.tabIndex = 0;
    this.scroller.setAttribute("role", "region");
    this.scroller.setAttribute("aria-label", `Text of column ${letter}`);
    this.scroller.append(this.#text.box);
    this.scroller.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    this.#listen(number, on);
  }

  /** @param {number} number @param {ColumnActs} on */
  #listen(number, on) {
    /** @param {Event} event */
    const indexOf = (event) => {
      const { dataset, classList } = targetOf(event);
      return classList.contains("tok") ? Number(dataset.i) : null;
    };
    const { box } = this.#text;
    const { field } = this;
    field?.addEventListener("input", () => on.write(number, field.value));
    field?.addEventListener("keydown", (event) => {
      if (!isSendKey(event)) return;
      event.preventDefault();
      on.send();
    });
    box.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") on.point(number, indexOf(event));
    });
    box.addEventListener("pointerleave", () => on.point(number, null));
    box.addEventListener("click", (event) => {
      const index = indexOf(event);
      if (index !== null) on.choose(number, index);
    });
  }

  #onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.#stick = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  }

  /**
   * Draw a column. `words`: of its settings; `prompt`: its own, or of the first that of all; `selected`; `parting`: number of the first token that
   * differs from the first column's, or null; `focus`: number of the focused token, or null;
   * `whyNotTake`: why it cannot be taken over, or ""; `removable`.
   *
   * @param {CompareColumn} column
   * @param {ColumnDrawing} drawing
   */
  draw({ answer, refused }, { words, prompt, selected, parting, focus, whyNotTake, removable }) {
    if (!this.field) setText(this.prompt, prompt);
    else if (this.field.value !== prompt) this.field.value = prompt;
    setText(this.words, words);
    this.pick.title = `${words}. Press to let the sliders and Reach in act on this column.`;
    this.pick.setAttribute("aria-pressed", String(selected));
    this.node.toggleAttribute("data-selected", selected);
    this.stop.hidden = !answer?.running;
    this.take.hidden = !answer?.segment || answer.running;
    this.take.disabled = whyNotTake !== "";
    setAttr(this.take, "title", whyNotTake || this.take.getAttribute("aria-label"));
    this.remove.hidden = !removable;
    const segment = answer?.segment;
    setText(this.status, refused || (segment ? statusOf(answer, segment) : "not run yet"));
    this.status.title = withReason(this.status.textContent, segment ?? null);
    this.status.dataset.tone = refused || answer?.segment?.reason === "error" ? "bad" : "";
    this.scroller.setAttribute("aria-busy", String(answer?.running ?? false));
    if (!answer) return this.#text.clear();
    this.#text.draw(answer);
    this.#mark("parts", parting);
    this.#focus(focus);
    if (this.#stick && answer.running) this.scroller.scrollTop = this.scroller.scrollHeight;
    return undefined;
  }

  /** @param {string} name @param {number | null} index */
  #mark(name, index) {
    const node = this.#text.nodes[index ?? -1];
    const before = this.#text.box.querySelector(`.${name}`);
    if (before === node) return;
    before?.classList.remove(name);
    node?.classList.add(name);
  }

  /** @param {number | null} index */
  #focus(index) {
    const node = this.#text.nodes[index ?? -1] ?? null;
    if (node === this.#focused) return;
    this.#focused?.classList.remove("on");
    node?.classList.add("on");
    this.#focused = node;
  }

  /** Scroll the focused token into view. */
  showFocus() {
    this.#focused?.scrollIntoView({ block: "nearest" });
  }
}

/** @param {string} letter */
function newPrompt(letter) {
  const field = el("textarea", "cmp-prompt");
  Object.assign(field, { rows: 1, placeholder: "same prompt", spellcheck: true });
  field.setAttribute("aria-label", `Prompt of column ${letter}`);
  return field;
}

/** @param {Answer} answer @param {Segment} segment */
function statusOf(answer, segment) {
  const { tokens } = answer;
  if (segment.state === "sent") return "sent";
  if (isQueued(segment)) return `queued, position ${segment.position}`;
  if (segment.running && isPrefilling(segment)) return "reading the prompt";
  const speed = tokensPerSecond(answer, segment);
  const parts = [pauseOf(answer) || plural(tokens.length, "token")];
  if (speed) parts.push(`${figure(speed)} tok/s`);
  if (!segment.running) parts.push(endOf(segment));
  return parts.join(" · ");
}

/** Say how a run ended: unlike in the conversation, no notice tells of an error. @param {Segment} segment */
function endOf(segment) {
  if (segment.reason === "eos") return "complete";
  return segment.reason === "error" ? segment.message : reasonOf(segment);
}
