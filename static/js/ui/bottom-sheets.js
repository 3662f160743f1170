// Bottom sheets of the phone layout, opened by the tabs.

import { all, byId, targetOf } from "./dom.js";
import { changed } from "../state.js";

export const phone = matchMedia("(max-width: 767px)");
const sheets = all(document, ".sheet");

export function setUpSheets() {
  const sizes = new ResizeObserver(endTextAboveSheet);
  for (const sheet of sheets) sizes.observe(sheet);
  for (const button of all(document, "[data-sheet-name]")) {
    button.addEventListener("click", () => toggle(button.dataset.sheetName ?? ""));
  }
  byId("turns").addEventListener("click", (event) => {
    if (!targetOf(event).closest(".tok, #examples")) closeSheet();
  });
  byId("prompt").addEventListener("focus", closeSheet);
  phone.addEventListener("change", closeSheet);
}

/** @param {string} name */
const toggle = (name) => (document.body.dataset.open === name ? closeSheet() : openSheet(name));

/** Open a panel as a sheet over the transcript (phone only). @param {string} name */
export function openSheet(name) {
  document.body.dataset.open = name;
  mark();
}

/** Close the open sheet; true when there was one. */
export function closeSheet() {
  const open = "open" in document.body.dataset;
  delete document.body.dataset.open;
  if (open) mark();
  return open;
}

/** On a phone, open the panel of the selected token. */
export function openNextToken() {
  if (phone.matches) openSheet("next");
}

function mark() {
  for (const tab of all(document, "#tabs [data-sheet-name]")) {
    tab.setAttribute("aria-expanded", String(tab.dataset.sheetName === document.body.dataset.open));
  }
  // Makes the open sheet scrollable from the keyboard.
  for (const sheet of sheets)
    if (sheet.dataset.sheet === document.body.dataset.open) sheet.tabIndex = 0;
    else sheet.removeAttribute("tabindex");
  endTextAboveSheet();
  changed("size", "focus");
}

/** Let the text that is written end above the open sheet, where it can be read. */
function endTextAboveSheet() {
  const open = sheets.find(({ dataset }) => dataset.sheet === document.body.dataset.open);
  const height = phone.matches && open ? open.offsetHeight : 0;
  document.body.style.setProperty("--sheet-height", `${height}px`);
  document.body.toggleAttribute("data-text-above", height > 0);
}
