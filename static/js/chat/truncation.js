// What becomes of a chat that is longer than the context: it is refused ("disabled"), or written
// without its oldest turns ("auto"), as the server decides (app/prompt/truncation.py).

import { byId } from "../ui/dom.js";
import { plural } from "../ui/format.js";
import { saveSettings } from "./persist.js";
import { changed, on, state } from "../state.js";

export function setUpTruncation() {
  byId("truncation").addEventListener("change", ({ target }) => setTruncation(target.value));
  on("settings", draw);
}

export function setTruncation(value) {
  state.truncation = value;
  saveSettings();
  changed("settings");
}

/** The field of a request for `messages`. */
export const truncationField = ({ messages }) =>
  messages && state.truncation === "auto" ? { truncation: "auto" } : {};

function draw() {
  byId("truncation").value = state.truncation;
  byId("truncation").disabled = !!state.replay;
}

/** Say how many turns an answer was written without: "without the 3 oldest turns"; or "". */
export function describeDropped({ segments }) {
  const { request, dropped } = segments.find((segment) => segment.dropped.length) ?? {};
  if (!dropped) return "";
  const n = dropped.filter((i) => request.messages[i]?.role === "user").length || 1;
  return n === 1 ? "without the oldest turn" : `without the ${plural(n, "oldest turn")}`;
}
