// The Edit button of an answer, and the editor that takes the place of its text.

import { changed, shownAnswer } from "../state.js";
import { newButton } from "../ui/dom.js";
import { continueEdited, saveEdited, whyNotContinued, whyNotSaved } from "./edit-message.js";
import { MessageEditor } from "../ui/message-editor.js";

const HINT =
  "Enter saves, Shift Enter breaks the line. What is saved becomes a branch, in which nothing of this " +
  "text was measured; this conversation stays as it is.";

export class AnswerEdit {
  button = newButton("Edit", () => this.#open(), "text message-edit");
  #turn;
  #box;
  /** @type {MessageEditor | null} */
  #editor = null;

  /**
   * `box`: element of the turn.
   *
   * @param {ModelTurn} turn
   * @param {HTMLElement} box
   */
  constructor(turn, box) {
    this.#turn = turn;
    this.#box = box;
  }

  /** Draw what may be done with the edited text now. */
  drawEditor() {
    this.#editor?.draw();
  }

  #open() {
    const turn = this.#turn;
    const text = (shownAnswer(turn)?.text ?? "").replace(/\r\n?/g, "\n"); // as a field gives it back
    this.#editor = new MessageEditor({
      label: "Answer to put in its place",
      text,
      hint: HINT,
      isComplete: (edited) => edited.trim() !== "" && edited !== text,
      acts: [
        { name: "Save", whyNot: whyNotSaved, act: (edited) => saveEdited(turn, edited) },
        {
          name: "Continue from here",
          whyNot: whyNotContinued,
          act: (edited) => continueEdited(turn, edited),
        },
      ],
      onCancel: () => this.#close(),
    });
    this.#box.toggleAttribute("data-editing", true);
    this.#box.append(this.#editor.box);
    this.#editor.begin();
  }

  #close() {
    this.#editor?.box.remove();
    this.#editor = null;
    this.#box.toggleAttribute("data-editing", false);
    this.button.focus();
    changed("turns"); // what another tab wrote meanwhile can be shown now
  }
}
