// Reading: the whole page for the text, without the panels. It is remembered.

import { byId } from "./dom.js";
import { changed } from "../state.js";

const KEY = "tokenglass.reading";
const { body } = document;

/** Closes what lies over the text. */
let uncover = () => {};

/** @param {() => void} onBegin */
export function setUpReading(onBegin) {
  uncover = onBegin;
  for (const id of /** @type {const} */ (["reading-begin", "reading-end"]))
    byId(id).addEventListener("click", () => {
      toggleReading();
      byId("turns").focus({ preventScroll: true }); // the button is hidden now
    });
  try {
    body.toggleAttribute("data-reading", localStorage.getItem(KEY) === "1");
  } catch {
    // Without storage the page begins with all panels.
  }
}

export const isReading = () => body.hasAttribute("data-reading");

/** Give the whole page to the text, or show the panels again. */
export function toggleReading() {
  setReading(!isReading());
}

/** @param {boolean} isOn */
export function setReading(isOn) {
  if (isOn) uncover();
  body.toggleAttribute("data-reading", isOn);
  try {
    localStorage.setItem(KEY, isOn ? "1" : "0");
  } catch {
    // Without storage the choice is lost on reload.
  }
  byId("live-status").textContent = isOn ? "Only the text is shown" : "All panels are shown";
  changed("size", "focus");
}
