// The KV cache in two views: what one run keeps in it, and what every one of its blocks holds.

import { el } from "../dom.js";
import { changed } from "../state.js";
import { cachePool } from "./cachepool.js";
import { cacheRun } from "./cacherun.js";

/**
 * What can be chosen. A view is a part of an instrument as look.js describes it: {needs, asks, setUp,
 * show, hide, table}; its `hide` is also called when the other one is chosen.
 */
const VIEWS = {
  run: { text: "This run", view: cacheRun },
  pool: { text: "All blocks", view: cachePool },
};

let wanted = "run";
/** Where each view is drawn and what chooses it, by its name. */
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
  choices.append(el("legend", "vh", "What of the cache"));
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

/** Show a view of the instrument as if it had been chosen; gives what goes back to the one before. */
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
