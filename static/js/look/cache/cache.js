// KV cache instrument with two views: the cache of one run, and all blocks.

import { el } from "../../ui/dom.js";
import { drawSegmented, newSegmented } from "../../ui/segmented.js";
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
/** Root element of each view, by name. @type {Map<string, HTMLElement>} */
const panes = new Map();
/** @type {HTMLElement} */
let choices;

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
    choices = newSegmented({
      legend: "View",
      name: "look-cache",
      options: Object.entries(VIEWS).map(([name, { text }]) => [/** @type {ViewName} */ (name), text]),
      value: wanted,
      onChange: choose,
    });
    choices.classList.add("kv-views");
    root.append(choices);
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
  const turnTo = (/** @type {ViewName} */ other) => {
    drawSegmented(choices, other);
    choose(other);
  };
  turnTo(name);
  return () => wanted === name && turnTo(before);
}

function drawPanes() {
  for (const [name, pane] of panes) pane.hidden = name !== wanted;
}
