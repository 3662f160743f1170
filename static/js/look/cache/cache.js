// KV cache instrument with two views: the cache of one run, and all blocks.

import { el, inputOf } from "../../ui/dom.js";
import { changed } from "../../state.js";
import { cachePool } from "./pool.js";
import { cacheRun } from "./run.js";

/** @typedef {"run" | "pool"} ViewName */

/**
 * The views. A view has the interface of an instrument (look/frame.js): {needs, asks, setUp, show,
 * hide, table}; `hide` is also called when the other view is chosen.
 *
 * @type {Record<ViewName, {text: string, view: CacheView}>}
 */
const VIEWS = {
  run: { text: "This run", view: cacheRun },
  pool: { text: "All blocks", view: cachePool },
};

/** @type {ViewName} */
let wanted = "run";
/** Root element and radio button of each view, by name. @type {Map<string, HTMLElement>} */
const panes = new Map();
/** @type {Map<string, HTMLInputElement>} */
const inputs = new Map();

const view = () => VIEWS[wanted].view;

export const cache = {
  get needs() {
    return view().needs;
  },

  get asks() {
    return view().asks;
  },

  /** @param {HTMLElement} root */
  setUp(root) {
    root.append(buildChoice());
    for (const [name, { view }] of Object.entries(VIEWS)) {
      const pane = root.appendChild(el("div", "kv-pane"));
      panes.set(name, pane);
      view.setUp(pane);
    }
    drawPanes();
  },

  /** @param {TokenFocus} context */
  show: (context) => view().show(context),

  hide: () => view().hide?.(),

  table: () => view().table(),
};

function buildChoice() {
  const choices = el("fieldset", "seg kv-views");
  choices.append(el("legend", "vh", "View"));
  for (const [value, { text }] of Object.entries(VIEWS)) {
    const choice = el("label", "", text);
    const input = el("input");
    Object.assign(input, { type: "radio", name: "look-cache", value, checked: value === wanted });
    choice.prepend(input);
    choices.append(choice);
    inputs.set(value, input);
  }
  choices.addEventListener("change", (event) => choose(/** @type {ViewName} */ (inputOf(event).value)));
  return choices;
}

/** @param {ViewName} name */
function choose(name) {
  view().hide?.();
  wanted = name;
  drawPanes();
  changed("look");
}

/** Switch to a view as the user could; returns a function that switches back. @param {ViewName} name */
export function showCacheView(name) {
  if (wanted === name) return null;
  const before = wanted;
  /** @param {string} other */
  const turnTo = (/** @type {ViewName} */ other) => {
    const input = inputs.get(other);
    if (input) input.checked = true;
    choose(other);
  };
  turnTo(name);
  return () => wanted === name && turnTo(before);
}

function drawPanes() {
  for (const [name, pane] of panes) pane.hidden = name !== wanted;
}
