// Tab list of the instruments; pressing the open tab closes its panel.

import { byId, el, one } from "../../ui/dom.js";
import { whyMissing } from "../../ui/lacks.js";

const list = byId("look-tabs");
/** @type {Map<InstrumentEntry, HTMLButtonElement>} */
const tabs = new Map();

/** @param {InstrumentEntry[]} instruments @param {(instrument: InstrumentEntry) => void} choose */
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
 * Draw the tabs. `open` is selected (or none); `stop` has the tab stop; only tabs with
 * `wanted(instrument)` are shown. Those about which an upstream server reports nothing say so.
 *
 * @param {InstrumentEntry | null} open
 * @param {InstrumentEntry} stop
 * @param {(instrument: InstrumentEntry) => boolean} wanted
 */
export function drawTabs(open, stop, wanted) {
  for (const [instrument, tab] of tabs) {
    tab.hidden = !wanted(instrument);
    tab.setAttribute("aria-selected", String(instrument === open));
    tab.tabIndex = instrument === stop ? 0 : -1;
    const missing = whyMissing(instrument.name);
    tab.toggleAttribute("data-missing", !!missing);
    tab.title = missing;
  }
  const tab = open && tabs.get(open);
  if (!tab) return;
  byId("look").setAttribute("aria-labelledby", tab.id);
  tab.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** The tab with the tab stop. */
export const tabStop = () => one(list, "[tabindex='0']");

/** Arrow keys move among tabs, Down enters the panel. @param {KeyboardEvent} event */
function onKey(event) {
  const all = [...tabs.values()].filter((tab) => !tab.hidden);
  const at = all.findIndex((tab) => tab === document.activeElement);
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
