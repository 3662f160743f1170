// What an upstream server does not tell, said where it is missed.
//
// The sentences come with the `hello` message (app/upstream/lacks.py). An element with `data-lack`
// shows the one of that name; `body[data-upstream]` hides what would be empty.

import { setText } from "./dom.js";
import { on, state } from "../state.js";

/** The sentence about an instrument or a part of the page that is missing, or "". */
export const lackOf = (name) =>
  state.hello?.upstream?.lacks.find((lack) => lack.name === name)?.why ?? "";

export function setUpLacks() {
  on("hello", draw);
}

function draw() {
  document.body.toggleAttribute("data-upstream", !!state.hello?.upstream);
  for (const node of document.querySelectorAll("[data-lack]")) {
    const why = lackOf(node.dataset.lack);
    setText(node, why);
    node.hidden = !why;
  }
}
