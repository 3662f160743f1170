// Keys that work everywhere on the page.

import { setMetric } from "./corecontrols.js";
import { byId } from "./dom.js";
import { toggle } from "./filmbar.js";
import { closeLook, openInstrument, toggleLook } from "./look.js";
import { METRIC_NAMES } from "./metrics.js";
import { startNewChat } from "./composer.js";
import { redo, undo } from "./reachdesk.js";
import { stopAgain } from "./replayagain.js";
import { chooseReplay, saveReplay } from "./replaydialog.js";
import { stop } from "./session.js";
import { state } from "./state.js";
import { closeSheet } from "./sheets.js";
import { copyAnswer } from "./statusline.js";
import { startTour } from "./tour.js";

const isTyping = ({ tagName, type }) =>
  tagName === "TEXTAREA" || (tagName === "INPUT" && !["range", "radio", "checkbox"].includes(type));

/** Does the space bar do something of its own there? */
const isControl = (node) =>
  node.matches("button, a, input:not([type=range]), select, summary, [role=tab]");

export function setUpKeys() {
  for (const [opener, dialog] of [
    ["help-open", "help"],
    ["about-open", "about"],
  ]) {
    byId(opener).addEventListener("click", () => byId(dialog).showModal());
    byId(dialog).addEventListener("click", (event) => {
      if (event.target === byId(dialog)) byId(dialog).close();
    });
  }
  document.addEventListener("keydown", onKey);
}

function onKey(event) {
  if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (closeSheet() || closeLook() || stopAgain() || stop()) event.preventDefault();
    return;
  }
  const command = event.ctrlKey || event.metaKey;
  const act = command
    ? commandOf(event)
    : event.altKey || isTyping(event.target)
      ? null
      : plain(event.key);
  if (!act || (event.key === " " && isControl(event.target))) return;
  event.preventDefault();
  act();
}

const help = () => byId("help").showModal();

function newChat() {
  closeLook();
  startNewChat();
}

/** Undo and redo are of what is changed inside the model; where one types, of what was typed. */
function commandOf({ key, shiftKey, target }) {
  const name = `${shiftKey ? "shift " : ""}${key.toLowerCase()}`;
  const steps = openInstrument() === "reach" && !isTyping(target) ? STEPS : {};
  return steps[name] ?? COMMANDS[name];
}

const STEPS = { z: undo, "shift z": redo, y: redo };

const COMMANDS = { "shift o": newChat, "shift c": copyAnswer, "/": help };

const PLAIN = { l: toggleLook, t: startTour, s: () => saveReplay(), o: chooseReplay };

function plain(key) {
  if (key === "?") return help;
  if (key === " ") return state.replay && toggle;
  const act = PLAIN[key.toLowerCase()];
  if (act) return act;
  const metric = METRIC_NAMES[Number(key) - 1];
  return metric ? () => setMetric(metric) : null;
}
