// A message of the person in the transcript: its text, its files, and an editor in its place.

import { changed } from "../state.js";
import { byId, el, newButton, setText } from "../ui/dom.js";
import { bytes } from "../ui/format.js";
import { growWithText } from "../ui/grow.js";
import { partsOf } from "./attachments.js";
import { sendEdited, whyNotNow } from "./edit-message.js";

const HINT = "What is sent becomes a branch; this conversation stays as it is.";
const EDITOR = "message-editor";

/** Is a message being edited? Its text is nowhere but on the page. */
export const isEditingMessage = () => document.querySelector(`.${EDITOR}`) !== null;

export class MessageView {
  nodes;
  #turn;
  #said;
  #edit = newButton("Edit", () => this.#open());
  /** {box, field, send, cancel, note}, or null. */
  #editor = null;
  /** Why it was not sent, or "". */
  #problem = "";
  #isSending = false;

  constructor(turn) {
    this.#turn = turn;
    const { text, files } = partsOf(turn);
    this.#said = el("p", "said", text);
    this.nodes = [...files.map(newFile), this.#said];
    if (turn.mode !== "chat") return;
    this.#edit.classList.add("message-edit");
    this.nodes.unshift(this.#edit);
  }

  /** Draw what may be done with the edited text now. */
  draw() {
    if (!this.#editor) return;
    const { field, send, cancel, note } = this.#editor;
    const { files } = partsOf(this.#turn);
    const why = whyNotNow();
    field.readOnly = cancel.disabled = this.#isSending;
    send.disabled = this.#isSending || why !== "" || (field.value.trim() === "" && !files.length);
    setText(note, this.#problem || why || HINT);
    note.toggleAttribute("data-bad", this.#problem !== "");
  }

  #open() {
    const field = el("textarea");
    field.setAttribute("aria-label", "Message to send instead");
    field.value = partsOf(this.#turn).text;
    field.addEventListener("input", () => this.#onInput());
    field.addEventListener("keydown", (event) => this.#onKey(event));
    const [send, cancel] = [
      newButton("Send", () => this.#send()),
      newButton("Cancel", () => this.#close()),
    ];
    const [box, acts, note] = [el("div", EDITOR), el("div", "message-acts"), el("p", "message-note")];
    note.setAttribute("role", "status");
    acts.append(send, cancel);
    box.append(field, acts, note);
    this.#editor = { box, field, send, cancel, note };
    this.#said.hidden = this.#edit.hidden = true;
    this.#said.before(box);
    this.#onInput();
    field.focus();
  }

  #close() {
    this.#editor.box.remove();
    this.#editor = null;
    this.#said.hidden = this.#edit.hidden = false;
    this.#edit.focus();
    changed("turns"); // what another tab wrote meanwhile can be shown now
  }

  #onInput() {
    this.#problem = "";
    growWithText(this.#editor.field);
    this.draw();
  }

  async #send() {
    this.#isSending = true;
    this.draw();
    this.#problem = await sendEdited(this.#turn, this.#editor.field.value.trim());
    this.#isSending = false;
    this.draw();
    if (!this.#problem) byId("prompt").focus();
  }

  #onKey(event) {
    const { send, cancel } = this.#editor;
    if (event.key === "Escape") cancel.click();
    else if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    else send.click();
    event.preventDefault(); // else Escape would close an instrument
  }
}

/** An attached file: its name, and what was put into the prompt for it. */
function newFile({ name, block }) {
  const box = el("details", "attached-file");
  const title = el("summary");
  title.append(el("b", "", name), ` ${bytes(new TextEncoder().encode(block).length)}`);
  const text = el("pre", "", block.trimEnd());
  text.tabIndex = 0; // it may scroll
  box.append(title, text);
  return box;
}
