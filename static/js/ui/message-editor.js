// A message of the transcript being edited: a field, its buttons, and a note that says what they do,
// or why they cannot now.

import { byId, el, newButton, setText } from "./dom.js";
import { isComposing, isSendKey } from "./enter-key.js";
import { growWithText } from "./grow.js";

const EDITOR = "message-editor";

/** Is a text of the conversation being edited that is nowhere but on the page? */
export const isEditing = () => document.querySelector(`.${EDITOR}, [data-unsaved]`) !== null;

/**
 * Mark a field other than a `MessageEditor` whose text is nowhere but on the page.
 *
 * @param {HTMLElement} field
 * @param {boolean} isUnsaved
 */
export const markUnsaved = (field, isUnsaved) => field.toggleAttribute("data-unsaved", isUnsaved);

/**
 * A button of the editor.
 *
 *   name     its text
 *   whyNot   returns why it can do nothing now, or ""
 *   act      takes the text; resolves to "", or to why that was not possible
 *
 * @typedef {{name: string, whyNot: () => string, act: (text: string) => Promise<string>}} Act
 */

export class MessageEditor {
  box = el("div", EDITOR);
  #field = el("textarea");
  #note = el("p", "message-note");
  #hint;
  #isComplete;
  /** @type {Act[]} */
  #acts;
  #buttons;
  #cancel;
  /** Why the last attempt failed, or "". */
  #problem = "";
  #isActing = false;

  /**
   *   label, text   name of the field, and what is in it at first
   *   hint          the note while there is nothing else to say
   *   isComplete    tells whether a text may be used
   *   acts          the buttons; Enter is the first
   *   onCancel      called by the button Cancel, and Escape
   *
   * @param {{label: string, text: string, hint: string, isComplete: (text: string) => boolean, acts: Act[], onCancel: () => void}} options
   */
  constructor({ label, text, hint, isComplete, acts, onCancel }) {
    this.#hint = hint;
    this.#isComplete = isComplete;
    this.#acts = acts;
    this.#field.setAttribute("aria-label", label);
    this.#field.value = text;
    this.#field.addEventListener("input", () => this.#onInput());
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    this.#buttons = acts.map((act) => newButton(act.name, () => this.#run(act)));
    this.#cancel = newButton("Cancel", onCancel);
    const row = el("div", "message-acts");
    row.append(...this.#buttons, this.#cancel);
    this.#note.setAttribute("role", "status");
    this.box.append(this.#field, row, this.#note);
  }

  /** Begin, once `box` is on the page. */
  begin() {
    this.#onInput();
    this.#field.focus();
  }

  /** Draw what may be done with the text now. */
  draw() {
    const whys = this.#acts.map(({ whyNot }) => whyNot());
    const isUsable = !this.#isActing && this.#isComplete(this.#field.value);
    this.#field.readOnly = this.#cancel.disabled = this.#isActing;
    this.#buttons.forEach((button, i) => {
      button.disabled = !isUsable || whys[i] !== "";
      button.title = whys[i];
    });
    setText(this.#note, this.#problem || whys[0] || this.#hint);
    this.#note.toggleAttribute("data-bad", this.#problem !== "");
  }

  #onInput() {
    this.#problem = "";
    growWithText(this.#field);
    this.draw();
    this.box.scrollIntoView({ block: "nearest" }); // with its buttons and the note
  }

  /** @param {Act} chosen */
  async #run({ act }) {
    this.#isActing = true;
    this.draw();
    this.#problem = await act(this.#field.value);
    this.#isActing = false;
    this.draw();
    if (!this.#problem) byId("prompt").focus();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (isComposing(event)) return;
    if (event.key === "Escape") this.#cancel.click();
    else if (!isSendKey(event)) return;
    else this.#buttons[0].click();
    event.preventDefault(); // else Escape would close an instrument
  }
}
