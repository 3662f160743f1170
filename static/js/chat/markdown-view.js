// The Markdown of an answer in place of its tokens: a button at each answer, and a key for all. markdown.js
// renders and sanitises it. An answer that is being written is shown as tokens until it ends.

import { changed, setState, state } from "../state.js";
import { byId, el, newButton, setAttr } from "../ui/dom.js";
import { fetchCode } from "../ui/fetch-code.js";

const KEY = "tokenglass.markdown";

/** Is Markdown shown where nobody chose for the answer itself? */
let isDefault = read();
/** Turn → whether it shows Markdown, where somebody chose. */
let chosen = new WeakMap();

function read() {
  try {
    return localStorage.getItem(KEY) === "1";
  } catch {
    return false;
  }
}

/** Show all answers as Markdown, or all as tokens. */
export function toggleMarkdown() {
  isDefault = !isDefault;
  chosen = new WeakMap();
  try {
    localStorage.setItem(KEY, isDefault ? "1" : "0");
  } catch {
    // Without storage the choice is lost on reload.
  }
  byId("live-status").textContent = isDefault ? "Answers as Markdown" : "Answers as tokens";
  changed("turns");
}

/** @param {ModelTurn} turn */
const isMarkdown = (turn) => chosen.get(turn) ?? isDefault;

/** The two views of one answer's turn. */
export class MarkdownView {
  #turn;
  #tokens;
  page = el("div", "markdown");
  button = newButton("Markdown", () => this.#toggle(), "text markdown-toggle");
  /** Text that is rendered, or being rendered. @type {string | null} */
  #text = null;

  /**
   * `tokens`: element of the answer's tokens.
   *
   * @param {ModelTurn} turn
   * @param {HTMLElement} tokens
   */
  constructor(turn, tokens) {
    this.#turn = turn;
    this.#tokens = tokens;
    this.page.hidden = true;
  }

  #toggle() {
    chosen.set(this.#turn, !isMarkdown(this.#turn));
    changed("turns");
  }

  /** @param {Answer} answer */
  draw(answer) {
    const wanted = isMarkdown(this.#turn);
    setAttr(this.button, "aria-pressed", String(wanted));
    const writing = state.active === answer;
    if (!wanted || writing || answer.empty) return this.#show(false);
    const text = this.#turn.given + answer.text;
    if (text !== this.#text) this.#render(text);
    return this.#show(this.page.hasChildNodes());
  }

  /** @param {string} text */
  async #render(text) {
    this.#text = text;
    try {
      const { renderMarkdown } = await fetchCode(() => import("./markdown.js"));
      if (this.#text !== text) return;
      this.page.replaceChildren(renderMarkdown(text));
    } catch (error) {
      this.#text = null;
      chosen.set(this.#turn, false);
      setState({ problem: { code: "markdown", message: /** @type {Error} */ (error).message } });
    }
    changed("turns");
  }

  /** @param {boolean} isPage */
  #show(isPage) {
    this.page.hidden = !isPage;
    this.#tokens.hidden = isPage;
  }
}
