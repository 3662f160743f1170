// Page state that the tour sets, and restores at the end unless the user changed it meanwhile.

import { setMetric } from "../core-sample/controls.js";
import { openInstrumentName, showInstrument } from "../look/frame.js";
import { closeSheet, openSheet, phone } from "../ui/bottom-sheets.js";
import { state } from "../state.js";
import { pin, view } from "../view.js";

const openedSheet = () => document.body.dataset.open ?? null;
/** @param {string | null} name */
const showSheet = (name) => void (name ? openSheet(name) : closeSheet());

/**
 * Parts of the page state: how each is read and set.
 *
 * @type {{[Name in keyof StagePlan]: {read: () => StagePlan[Name], set: (value: StagePlan[Name]) => void}}}
 */
const PARTS = {
  instrument: { read: openInstrumentName, set: showInstrument },
  sheet: { read: openedSheet, set: showSheet },
  metric: { read: () => state.metric, set: setMetric },
  pinned: { read: () => view.pinned, set: (index) => pin(index) },
  row: { read: () => view.row, set: (row) => pin(view.pinned, row) },
};

const PART_NAMES = /** @type {(keyof StagePlan)[]} */ (Object.keys(PARTS));

export class Stage {
  /** Values before the tour, and those set by the tour. @type {Partial<StagePlan>} */
  #before = {};
  /** @type {Partial<StagePlan>} */
  #own = {};
  /** @type {(() => void) | null} */
  #undo = null;

  /**
   * Set up a step; parts it does not use are restored.
   *
   * @param {Pick<TourStep<never>, "open" | "sheet" | "metric">} step
   */
  show({ open, sheet, metric }) {
    this.#leave();
    this.#set("sheet", phone.matches ? (sheet ?? null) : null);
    this.#set("instrument", open);
    if (metric) this.#set("metric", metric);
    else this.#restore("metric");
  }

  /** Focus a token, and a row of the core sample if given. @param {StepFocus} focus */
  look({ index, row }) {
    this.#set("pinned", index);
    if (row) this.#set("row", row);
  }

  /**
   * Set the function that undoes the step's own changes.
   *
   * @param {(() => void) | null | undefined | void} undo
   */
  entered(undo) {
    this.#undo = undo ?? null;
  }

  /** Restore everything; `same`: the answer whose token was focused is still shown. @param {boolean} same */
  end(same) {
    this.#leave();
    for (const name of PART_NAMES)
      if (same || (name !== "pinned" && name !== "row")) this.#restore(name);
  }

  #leave() {
    this.#undo?.();
    this.#undo = null;
  }

  /**
   * @template {keyof StagePlan} Name
   * @param {Name} name
   * @param {StagePlan[Name]} value
   */
  #set(name, value) {
    const { read, set } = PARTS[name];
    if (!(name in this.#before)) this.#before[name] = read();
    if (read() !== value) set(value);
    this.#own[name] = value;
  }

  /**
   * @template {keyof StagePlan} Name
   * @param {Name} name
   */
  #restore(name) {
    const { [name]: own } = this.#own;
    const { [name]: before } = this.#before;
    if (own === undefined || before === undefined) return;
    const { read, set } = PARTS[name];
    if (read() === own && read() !== before) set(before);
    delete this.#own[name];
    delete this.#before[name];
  }
}
