// A summary in the transcript: its text, which can be folded away, edited and removed.

import { el, newButton, setText } from "../ui/dom.js";
import { isComposing, isSendKey } from "../ui/enter-key.js";
import { plural } from "../ui/format.js";
import { growWithText } from "../ui/grow.js";
import { markUnsaved } from "../ui/message-editor.js";
import { changed, lastTurn, shownAnswer, state } from "../state.js";
import { editSummary, removeSummary } from "./summarize.js";
import { actingSummary, editOf, isWhole, oldestTurns, summaryText } from "../turns/summary.js";

export class SummaryView {
  box = el("details", "summary-fold");
  #turn;
  #written;
  #head = el("summary");
  #edited = el("p", "said");
  #field = el("textarea");
  #acts = el("div", "summary-acts");
  #edit = newButton("Edit", () => this.#beginEdit());
  #undo = newButton("Undo edit", () => editSummary(this.#turn, null));
  #remove = newButton("Remove", () => removeSummary(this.#turn));
  #save = newButton("Save", () => this.#endEdit(true));
  #cancel = newButton("Cancel", () => this.#endEdit(false));
  #isEditing = false;
  /** Was it the last turn when it was drawn last? It folds when the conversation goes on. */
  #wasLast = false;

  /**
   * `written`: element of the text that the model wrote.
   *
   * @param {ModelTurn} turn
   * @param {HTMLElement} written
   */
  constructor(turn, written) {
    this.#turn = turn;
    this.#written = written;
    this.#field.setAttribute("aria-label", "Summary");
    this.#save.title = "Enter saves, Shift Enter breaks the line";
    this.#field.addEventListener("input", () => this.#drawField());
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    this.#acts.append(this.#edit, this.#undo, this.#remove, this.#save, this.#cancel);
    this.box.append(this.#head, written, this.#edited, this.#field, this.#acts);
  }

  /** @param {Answer} answer */
  draw(answer) {
    const isLast = lastTurn() === this.#turn;
    if (isLast !== this.#wasLast) this.box.open = isLast || this.#isEditing;
    this.#wasLast = isLast;
    setText(this.#head, `of ${oldestTurns(this.#turn.summary?.covers ?? 0)} · ${this.#describe(answer)}`);
    this.#drawText();
    this.#drawActs(answer.running);
  }

  /** @param {Answer} answer */
  #describe(answer) {
    const turn = this.#turn;
    if (state.active === answer) return "being written";
    if (!isWhole(turn)) return "not finished, so it is not used";
    if (actingSummary(state.turns) !== turn) return "part of a later summary";
    if (editOf(turn) !== null) return "edited";
    const cut = answer.segment?.reason === "length" ? ", cut at its limit" : "";
    return plural(answer.tokens.length, "token") + cut;
  }

  #drawText() {
    const edit = editOf(this.#turn);
    this.#written.hidden = this.#isEditing || edit !== null;
    this.#edited.hidden = this.#isEditing || edit === null;
    this.#field.hidden = !this.#isEditing;
    setText(this.#edited, edit ?? "");
  }

  /** @param {boolean} isRunning */
  #drawActs(isRunning) {
    this.#acts.hidden = isRunning || state.replay !== null;
    this.#edit.hidden = this.#remove.hidden = this.#isEditing;
    this.#undo.hidden = this.#isEditing || editOf(this.#turn) === null;
    this.#save.hidden = this.#cancel.hidden = !this.#isEditing;
  }

  #beginEdit() {
    this.#isEditing = true;
    markUnsaved(this.#field, true);
    this.#field.value = summaryText(this.#turn);
    this.draw(/** @type {Answer} */ (shownAnswer(this.#turn)));
    this.#drawField();
    this.#field.focus();
  }

  #drawField() {
    growWithText(this.#field);
    this.#save.disabled = this.#field.value.trim() === "";
  }

  /** @param {boolean} isKept */
  #endEdit(isKept) {
    const text = this.#field.value.trim();
    this.#isEditing = false;
    markUnsaved(this.#field, false);
    changed("turns"); // what another tab wrote meanwhile can be shown now
    if (isKept && text !== summaryText(this.#turn)) editSummary(this.#turn, text);
    this.draw(/** @type {Answer} */ (shownAnswer(this.#turn)));
    this.#edit.focus();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (isComposing(event)) return;
    if (event.key === "Escape") this.#endEdit(false);
    else if (!isSendKey(event)) return;
    else if (!this.#save.disabled) this.#endEdit(true);
    event.preventDefault(); // else Escape would stop the run
  }
}
