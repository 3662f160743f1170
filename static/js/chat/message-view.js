// A message of the person in the transcript: its text, its files, and an editor in its place.

import { changed } from "../state.js";
import { el, newButton } from "../ui/dom.js";
import { bytes } from "../ui/format.js";
import { partsOf } from "../turns/message-parts.js";
import { sendEdited, whyNotSent } from "./edit-message.js";
import { MessageEditor } from "../ui/message-editor.js";

const HINT =
  "Enter sends, Shift Enter breaks the line. What is sent becomes a branch; this conversation stays " +
  "as it is.";

export class MessageView {
  /** @type {HTMLElement[]} */
  nodes;
  #turn;
  #said;
  #edit = newButton("Edit", () => this.#open(), "text message-edit");
  /** @type {MessageEditor | null} */
  #editor = null;

  /** @param {UserTurn} turn */
  constructor(turn) {
    this.#turn = turn;
    const { text, files } = partsOf(turn);
    this.#said = el("p", "said", text);
    this.nodes = [...files.map(newFile), this.#said];
    if (turn.mode === "chat") this.nodes.unshift(this.#edit);
  }

  /** Draw what may be done with the edited text now. */
  drawEditor() {
    this.#editor?.draw();
  }

  #open() {
    const { text, files } = partsOf(this.#turn);
    const act = (/** @type {string} */ edited) => sendEdited(this.#turn, edited.trim());
    this.#editor = new MessageEditor({
      label: "Message to send instead",
      text,
      hint: HINT,
      isComplete: (edited) => edited.trim() !== "" || files.length > 0,
      acts: [{ name: "Send", whyNot: whyNotSent, act }],
      onCancel: () => this.#close(),
    });
    this.#said.hidden = this.#edit.hidden = true;
    this.#said.before(this.#editor.box);
    this.#editor.begin();
  }

  #close() {
    this.#editor?.box.remove();
    this.#editor = null;
    this.#said.hidden = this.#edit.hidden = false;
    this.#edit.focus();
    changed("turns"); // what another tab wrote meanwhile can be shown now
  }
}

/**
 * An attached file: its name, and what was put into the prompt for it.
 *
 * @param {AttachedText} file
 */
function newFile({ name, block }) {
  const box = el("details", "attached-file");
  const title = el("summary");
  title.append(el("b", "", name), ` ${bytes(new TextEncoder().encode(block).length)}`);
  const text = el("pre", "", block.trimEnd());
  text.tabIndex = 0; // it may scroll
  box.append(title, text);
  return box;
}
