// What the walk sets on the page, and puts back when it ends, unless it was changed since.

import { setMetric } from "../corecontrols.js";
import { openInstrument, showInstrument } from "../look.js";
import { closeSheet, openSheet, phone } from "../sheets.js";
import { state } from "../state.js";
import { pin, view } from "../view.js";

const openedSheet = () => document.body.dataset.open ?? null;
const showSheet = (name) => (name ? openSheet(name) : closeSheet());

/** Parts of the page: how each is read and set. */
const PARTS = {
  instrument: { read: openInstrument, set: showInstrument },
  sheet: { read: openedSheet, set: showSheet },
  metric: { read: () => state.metric, set: setMetric },
  pinned: { read: () => view.pinned, set: (index) => pin(index) },
  row: { read: () => view.row, set: (row) => pin(view.pinned, row) },
};

export class Stage {
  /** name → what it was, and what the walk made of it. */
  #before = new Map();
  #own = new Map();
  #undo = null;

  /** Set up a step: what it leaves out goes back to what it was. */
  show({ open, sheet, metric }) {
    this.#leave();
    this.#set("sheet", phone.matches ? (sheet ?? null) : null);
    this.#set("instrument", open);
    if (metric) this.#set("metric", metric);
    else this.#restore("metric");
  }

  /** Look at a token, and a row of the core where one is given. */
  look({ index, row }) {
    this.#set("pinned", index);
    if (row) this.#set("row", row);
  }

  /** What `undo` takes back when the step is left. */
  entered(undo) {
    this.#undo = undo ?? null;
  }

  /** Put everything back; `same`: the answer is still shown whose token and row were looked at. */
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
