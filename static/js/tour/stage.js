// @ts-nocheck
// Page state that the tour sets, and restores at the end unless the user changed it meanwhile.

import { setMetric } from "../core-sample/controls.js";
import { openInstrumentName, showInstrument } from "../look/frame.js";
import { closeSheet, openSheet, phone } from "../ui/bottom-sheets.js";
import { state } from "../state.js";
import { pin, view } from "../view.js";

const openedSheet = () => document.body.dataset.open ?? null;
const showSheet = (name) => (name ? openSheet(name) : closeSheet());

/** Parts of the page state: how each is read and set. */
const PARTS = {
  instrument: { read: openInstrumentName, set: showInstrument },
  sheet: { read: openedSheet, set: showSheet },
  metric: { read: () => state.metric, set: setMetric },
  pinned: { read: () => view.pinned, set: (index) => pin(index) },
  row: { read: () => view.row, set: (row) => pin(view.pinned, row) },
};

export class Stage {
  /** name → value before the tour, and value set by the tour. */
  #before = new Map();
  #own = new Map();
  #undo = null;

  /** Set up a step; parts it does not use are restored. */
  show({ open, sheet, metric }) {
    this.#leave();
    this.#set("sheet", phone.matches ? (sheet ?? null) : null);
    this.#set("instrument", open);
    if (metric) this.#set("metric", metric);
    else this.#restore("metric");
  }

  /** Focus a token, and a row of the core sample if given. */
  look({ index, row }) {
    this.#set("pinned", index);
    if (row) this.#set("row", row);
  }

  /** Set the function that undoes the step's own changes. */
  entered(undo) {
    this.#undo = undo ?? null;
  }

  /** Restore everything; `same`: the answer whose token was focused is still shown. */
  end(same) {
    this.#leave();
    for (const name of Object.keys(PARTS))
      if (same || (name !== "pinned" && name !== "row")) this.#restore(name);
  }

  #leave() {
    this.#undo?.();
    this.#undo = null;
  }

  #set(name, value) {
    const { read, set } = PARTS[name];
    if (!this.#before.has(name)) this.#before.set(name, read());
    if (read() !== value) set(value);
    this.#own.set(name, value);
  }

  #restore(name) {
    if (!this.#own.has(name)) return;
    const { read, set } = PARTS[name];
    const before = this.#before.get(name);
    if (read() === this.#own.get(name) && read() !== before) set(before);
    this.#own.delete(name);
    this.#before.delete(name);
  }
}
