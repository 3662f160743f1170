// The row of instruments: a tab list, in which a tab that is open closes its panel.

import { byId, el } from "../dom.js";

const list = byId("look-tabs");
const tabs = new Map();

export function setUpTabs(instruments, choose) {
  for (const instrument of instruments) {
    const tab = el("button", "", instrument.tab);
    tab.type = "button";
    tab.id = `look-tab-${instrument.name}`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", "look");
    tab.addEventListener("click", () => choose(instrument));
    tabs.set(instrument, tab);
    list.append(tab);
  }
  list.addEventListener("keydown", onKey);
}

/**
 * `open` is selected (or none); `reached` is the tab that the Tab key reaches; only those that are
 * `wanted(instrument)` are there.
 */
export function drawTabs(open, reached, wanted) {
  for (const [instrument, tab] of tabs) {
    tab.hidden = !wanted(instrument);
    tab.setAttribute("aria-selected", String(instrument === open));
    tab.tabIndex = instrument === reached ? 0 : -1;
  }
  const tab = tabs.get(open);
  if (!tab) return;
  byId("look").setAttribute("aria-labelledby", tab.id);
  tab.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** The tab that the Tab key reaches. */
export const reachedTab = () => list.querySelector("[tabindex='0']");

/** Arrows move among tabs, Enter opens; down goes into the panel. */
function onKey(event) {
  const all = [...tabs.values()].filter((tab) => !tab.hidden);
  const at = all.indexOf(document.activeElement);
  if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const to = {
    ArrowRight: all[(at + 1) % all.length],
    ArrowLeft: all[(at + all.length - 1) % all.length],
    Home: all[0],
    End: all.at(-1),
    ArrowDown: byId("look").hidden ? null : byId("look"),
  }[event.key];
  if (!to) return;
  event.preventDefault();
  to.focus();
}
