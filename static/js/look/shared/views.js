// Instruments of several views, of which one is shown.

import { changed } from "../../state.js";
import { el } from "../../ui/dom.js";
import { drawSegmented, newSegmented } from "../../ui/segmented.js";

/** @template {Focus} F */
export class Views {
  /**
   * `name`: of the choice, one word; `views`: the first one is shown at first.
   *
   * @param {string} name
   * @param {InstrumentView<F>[]} views
   */
  constructor(name, views) {
    this.name = name;
    this.views = views;
    this.shown = views[0];
    /** @type {HTMLElement} */
    this.choices = el("fieldset");
    /** @type {Map<InstrumentView<F>, HTMLElement>} */
    this.boxes = new Map();
  }

  /** Show a view, as if it was chosen. @param {InstrumentView<F>} view */
  open(view) {
    this.shown.hide?.(false);
    this.shown = view;
    drawSegmented(this.choices, view.name);
    changed("look");
  }

  /**
   * Show a view while the tour or a lesson speaks of it. Returns how to show the one before again, which
   * does nothing once another was chosen; null: it is shown already.
   *
   * @param {string} name
   */
  lend(name) {
    const [before, view] = [this.shown, this.views.find((each) => each.name === name)];
    if (!view || view === before) return null;
    this.open(view);
    return () => {
      if (this.shown === view) this.open(before);
    };
  }

  /** @param {HTMLElement} root */
  setUp(root) {
    this.choices = newSegmented({
      legend: "View",
      name: this.name,
      options: this.views.map(({ name, label }) => [name, label]),
      value: this.shown.name,
      onChange: (wanted) => this.open(this.views.find(({ name }) => name === wanted) ?? this.shown),
    });
    this.choices.classList.add("look-views");
    root.append(this.choices);
    for (const view of this.views) {
      const box = root.appendChild(el("div", `look-view view-${view.name}`));
      this.boxes.set(view, box);
      view.setUp(box);
    }
  }

  /** @param {F} focus */
  show(focus) {
    for (const [view, box] of this.boxes) box.hidden = view !== this.shown;
    return this.shown.show(focus);
  }

  /** @param {boolean} isClosed */
  hide(isClosed) {
    this.shown.hide?.(isClosed);
  }

  table() {
    return this.shown.table();
  }
}
