// Keyboard shortcuts of the whole page.

import { setMetric } from "../core-sample/controls.js";
import { byId, targetOf } from "../ui/dom.js";
import { isComposing } from "../ui/enter-key.js";
import { toggle } from "../replay/playback-bar.js";
import { closeInstrument, openInstrumentName, toggleInstrument } from "../look/frame.js";
import { METRIC_NAMES } from "../turns/metrics.js";
import { toggleMarkdown } from "../chat/markdown-view.js";
import { startNewChat } from "../chat/composer.js";
import { openDrawer } from "../conversations/drawer.js";
import { redo, undo } from "../interventions/intervention-store.js";
import { stopRerun } from "../replay/rerun.js";
import { chooseReplay, saveReplay } from "../replay/dialog.js";
import { stop } from "../turns/stop.js";
import { state } from "../state.js";
import { closeSheet } from "../ui/bottom-sheets.js";
import { stepOnce, togglePause } from "../chat/pace.js";
import { copyAnswer } from "../chat/status-line.js";
import { toggleReading } from "../ui/reading.js";
import { startTour } from "../tour/entry.js";
import { openWords } from "../words/words.js";

/** @param {EventTarget | null} target */
const isTyping = (target) =>
  target instanceof HTMLTextAreaElement ||
  (target instanceof HTMLInputElement && !["range", "radio", "checkbox"].includes(target.type));

/** Does the space bar activate this element? @param {Element} node */
const isControl = (node) =>
  node.matches("button, a, input:not([type=range]), select, summary, [role=tab]");

export function setUpKeys() {
  for (const [opener, dialog] of /** @type {const} */ ([
    ["help-open", "help"],
    ["about-open", "about"],
  ])) {
    byId(opener).addEventListener("click", () => byId(dialog).showModal());
    byId(dialog).addEventListener("click", (event) => {
      if (event.target === byId(dialog)) byId(dialog).close();
    });
  }
  document.addEventListener("keydown", onKey);
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.defaultPrevented || isComposing(event) || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (closeSheet() || closeInstrument() || stopRerun() || stop()) event.preventDefault();
    return;
  }
  const command = event.ctrlKey || event.metaKey;
  const act = command
    ? commandOf(event)
    : event.altKey || isTyping(event.target) || event.target instanceof HTMLSelectElement // letters choose
      ? null
      : plain(event.key);
  if (!act || (event.key === " " && isControl(targetOf(event)))) return;
  event.preventDefault();
  act();
}

const help = () => byId("help").showModal();

function newChat() {
  closeInstrument();
  startNewChat();
}

/**
 * Return the command of a key. Undo and redo act on interventions, except in a text field.
 *
 * @param {KeyboardEvent} event
 */
function commandOf({ key, shiftKey, target }) {
  const name = `${shiftKey ? "shift " : ""}${key.toLowerCase()}`;
  const steps = openInstrumentName() === "reach" && !isTyping(target) ? STEPS : NONE;
  return steps[name] ?? COMMANDS[name];
}

/** @typedef {Record<string, () => unknown>} Commands */
/** @type {Commands} */
const NONE = {};
/** @type {Commands} */
const STEPS = { z: undo, "shift z": redo, y: redo };

/** @type {Commands} */
const COMMANDS = { "shift o": newChat, "shift c": copyAnswer, k: openDrawer, "/": help };

/** @type {Commands} */
const UNMODIFIED = {
  c: openDrawer,
  l: toggleInstrument,
  f: toggleReading,
  m: toggleMarkdown,
  t: startTour,
  s: () => saveReplay(),
  o: chooseReplay,
  p: togglePause,
  ".": stepOnce,
  "/": () => openWords(),
};

/** @param {string} key @returns {(() => unknown) | null} */
function plain(key) {
  if (key === "?") return help;
  if (key === " ") return state.replay ? toggle : null;
  const act = UNMODIFIED[key.toLowerCase()];
  if (act) return act;
  const metric = METRIC_NAMES[Number(key) - 1];
  return metric ? () => setMetric(metric) : null;
}
