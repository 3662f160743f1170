// Theme: light, dark or the system's. theme-first.js applies the choice before the first paint.

import { byId } from "./dom.js";
import { readPalette } from "./palette.js";
import { changed } from "../state.js";

const KEY = "tokenglass.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
/** Contrast themes of Windows and the like (states.css). */
const forced = matchMedia("(forced-colors: active)");
const root = document.documentElement;
/** Theme → the next one; "" is the system's. @type {Record<string, () => string>} */
const NEXT = {
  "": () => (dark.matches ? "light" : "dark"),
  light: () => (dark.matches ? "" : "dark"),
  dark: () => (dark.matches ? "light" : ""),
};

export function setUpTheme() {
  byId("theme").addEventListener("click", () => choose(NEXT[root.dataset.theme ?? ""]()));
  dark.addEventListener("change", apply);
  forced.addEventListener("change", apply);
  apply();
}

/** @param {string} theme */
function choose(theme) {
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  try {
    if (theme) localStorage.setItem(KEY, theme);
    else localStorage.removeItem(KEY);
  } catch {
    // Without storage the choice is lost on reload.
  }
  apply();
}

function apply() {
  const theme = root.dataset.theme;
  const now = theme ?? `system, now ${dark.matches ? "dark" : "light"}`;
  byId("theme").setAttribute("aria-label", `Theme: ${now}`);
  byId("theme").title = `Theme: ${now}`;
  readPalette();
  changed("theme");
}
