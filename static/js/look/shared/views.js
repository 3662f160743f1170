// Instruments of several views, of which one is shown.

import { changed } from "../../state.js";
import { el, inputOf } from "../../ui/dom.js";

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
    /** @type {Map<InstrumentView<F>, HTMLElement>} */
    this.boxes = new Map();
  }

  /** @param {HTMLElement} root */
  setUp(root) {
    const choices = root.appendChild(el("fieldset", "seg look-views"));
    choices.append(el("legend", "vh", "View"));
    for (const view of this.views) {
      const choice = el("label", "", view.label);
      const input = Object.assign(el("input"), { type: "radio", name: this.name, value: view.name });
      input.checked = view === this.shown;
      choice.prepend(input);
      choices.append(choice);
      const box = root.appendChild(el("div", `look-view view-${view.name}`));
      this.boxes.set(view, box);
      view.setUp(box);
    }
    choices.addEventListener("change", (event) => {
      this.shown.hide?.(false);
      this.shown = this.views.find(({ name }) => name === inputOf(event).value) ?? this.shown;
      changed("look");
    });
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
