// @ts-nocheck
// KV cache instrument with two views: the cache of one run, and all blocks.

import { el } from "../../ui/dom.js";
import { changed } from "../../state.js";
import { cachePool } from "./pool.js";
import { cacheRun } from "./run.js";

/**
 * The views. A view has the interface of an instrument (look/frame.js): {needs, asks, setUp, show,
 * hide, table}; `hide` is also called when the other view is chosen.
 */
const VIEWS = {
  run: { text: "This run", view: cacheRun },
  pool: { text: "All blocks", view: cachePool },
};

let wanted = "run";
/** Root element and radio button of each view, by name. */
const panes = {};
const inputs = {};

const view = () => VIEWS[wanted].view;

export const cache = {
  get needs() {
    return view().needs;
  },

  get asks() {
    return view().asks;
  },

  setUp(root) {
    root.append(buildChoice());
    for (const name in VIEWS) {
      panes[name] = root.appendChild(el("div", "kv-pane"));
      VIEWS[name].view.setUp(panes[name]);
    }
    drawPanes();
  },

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
    inputs[value] = input;
  }
  choices.addEventListener("change", ({ target }) => choose(target.value));
  return choices;
}

function choose(name) {
  view().hide?.();
  wanted = name;
  drawPanes();
  changed("look");
}

/** Switch to a view as the user could; returns a function that switches back. */
export function showCacheView(name) {
  if (wanted === name) return null;
  const before = wanted;
  const turnTo = (other) => {
    inputs[other].checked = true;
    choose(other);
  };
  turnTo(name);
  return () => wanted === name && turnTo(before);
}

function drawPanes() {
  for (const name in panes) panes[name].hidden = name !== wanted;
}
