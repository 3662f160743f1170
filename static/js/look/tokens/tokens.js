// Tokens instrument: the prompt in tokens, the steps from a word to its tokens, and the same texts in
// several tokenizers.

import { changed } from "../../state.js";
import { el, inputOf } from "../../ui/dom.js";
import { comparison } from "./comparison.js";
import { prompt } from "./prompt.js";
import { word } from "./word.js";

const VIEWS = [prompt, word, comparison];
let shown = prompt;
/** @type {Map<TokensView, HTMLElement>} */
const boxes = new Map();

/** @type {Instrument} */
export const tokens = {
  needs: "nothing",

  setUp(root) {
    const choices = root.appendChild(el("fieldset", "seg tk-views"));
    choices.append(el("legend", "vh", "View"));
    for (const view of VIEWS) {
      const choice = el("label", "", view.label);
      const input = Object.assign(el("input"), { type: "radio", name: "tokens-view", value: view.name });
      input.checked = view === shown;
      choice.prepend(input);
      choices.append(choice);
      const box = root.appendChild(el("div", `tk-view tk-${view.name}`));
      boxes.set(view, box);
      view.setUp(box);
    }
    choices.addEventListener("change", (event) => {
      shown = VIEWS.find(({ name }) => name === inputOf(event).value) ?? prompt;
      changed("look");
    });
  },

  show(focus) {
    for (const [view, box] of boxes) box.hidden = view !== shown;
    return shown.show(focus);
  },

  table: () => shown.table(),
};
