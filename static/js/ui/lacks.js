// Notices in place of what the page cannot show behind an upstream server.
//
// The sentences come with the `hello` message (app/upstream/lacks.py). An element with `data-lack`
// shows the one of that name; `body[data-upstream]` hides what would be empty.

import { all, setText } from "./dom.js";
import { on, state } from "../state.js";

/**
 * The sentence about an instrument or a part of the page that is missing, or "".
 *
 * @param {string} name
 */
export const lackOf = (name) =>
  state.hello?.upstream?.lacks.find((lack) => lack.name === name)?.why ?? "";

/** Instruments that work for what an upstream server does report; the sentence is a remark there. */
const REMARKS = new Set(["tokens"]);

/** Why an instrument has nothing to show, or "". @param {string} name */
export const whyMissing = (name) => (REMARKS.has(name) ? "" : lackOf(name));

/** What an instrument that works cannot show, or "". @param {string} name */
export const remarkOn = (name) => (REMARKS.has(name) ? lackOf(name) : "");

export function setUpLacks() {
  on("hello", draw);
}

function draw() {
  document.body.toggleAttribute("data-upstream", !!state.hello?.upstream);
  for (const node of all(document, "[data-lack]")) {
    const why = lackOf(node.dataset.lack ?? "");
    setText(node, why);
    node.hidden = !why;
  }
}
