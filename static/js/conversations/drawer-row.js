// One conversation in the drawer's list.

import { el, setText } from "../ui/dom.js";
import { isComposing, isEnter } from "../ui/enter-key.js";
import { newIconButton } from "../ui/icon-button.js";
import { plural } from "../ui/format.js";
import { excerpt } from "./search.js";

const TIME = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const YEAR = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", year: "numeric" });

/**
 * What the buttons of a row do.
 *
 * @typedef {Record<"open" | "stop" | "startRename" | "save" | "remove", (entry: Entry) => void>
 *   & {rename: (entry: Entry, title: string | null) => void}} Actions
 */

/** @param {Entry} entry */
export const nameOf = ({ title, heading }) => title || heading;

/**
 * Return the list item of an entry. `words`: those searched for; `current`: it is on the page;
 * `renaming`: its name is being edited; `actions`: {open, stop, startRename, rename, save, remove}.
 *
 * @param {Entry} entry
 * @param {{words: string[], current: boolean, renaming: boolean, actions: Actions}} options
 */
export function newRow(entry, { words, current, renaming, actions }) {
  const row = el("li", "kept");
  row.dataset.id = entry.id;
  row.toggleAttribute("data-current", current);
  if (renaming) row.append(newNameField(entry, actions));
  else row.append(newButton(entry, words, current, actions), newActions(entry, actions));
  return row;
}

/**
 * @param {Entry} entry
 * @param {string[]} words
 * @param {boolean} current
 * @param {Actions} actions
 */
function newButton(entry, words, current, actions) {
  const button = el("button", "kept-open");
  button.type = "button";
  if (current) button.setAttribute("aria-current", "true");
  const title = el("span", "ellipsis kept-title");
  title.append(el("i", "kept-mark"), nameOf(entry));
  button.append(title, newFacts(entry, words));
  button.addEventListener("click", () => actions.open(entry));
  return button;
}

/**
 * Below the name: where the words are, or when it was written, by what and how much.
 *
 * @param {Entry} entry
 * @param {string[]} words
 */
function newFacts({ text, updated, model, nTokens, branchedFrom }, words) {
  const facts = el("span", "ellipsis kept-facts");
  facts.append(el("span", "kept-phase"));
  const found = words.length ? excerpt(text, words) : null;
  if (found) facts.append(found.before, el("mark", "", found.hit), found.after);
  else {
    facts.classList.add("kept-by");
    facts.append(el("span", "", when(updated)));
    if (model) facts.append(el("span", "", " · "), el("span", "ellipsis kept-model", model));
    facts.append(el("span", "kept-tokens", ` · ${plural(nTokens, "token")}`));
    if (branchedFrom) facts.append(el("span", "ellipsis kept-from", ` · branch of “${branchedFrom.title}”`));
  }
  return facts;
}

/**
 * Show what has changed of an entry whose name is the same. Its buttons stay, with the focus and a press
 * that has begun.
 *
 * @param {HTMLElement} row
 * @param {Entry} entry
 * @param {string[]} words
 */
export const updateRow = (row, entry, words) =>
  row.querySelector(".kept-facts")?.replaceWith(newFacts(entry, words));

/** @param {number} ms */
function when(ms) {
  const date = new Date(ms);
  const now = new Date();
  if (date.toDateString() === now.toDateString()) return TIME.format(date);
  return (date.getFullYear() === now.getFullYear() ? DAY : YEAR).format(date);
}

/**
 * @param {Entry} entry
 * @param {Actions} actions
 */
function newActions(entry, actions) {
  const box = el("span", "kept-acts");
  const stop = newIconButton("stop", `Stop “${nameOf(entry)}”`, () => actions.stop(entry));
  stop.classList.add("kept-stop");
  box.append(
    stop,
    newIconButton("rename", `Rename “${nameOf(entry)}”`, () => actions.startRename(entry)),
    newIconButton("save", `Save “${nameOf(entry)}” as a file`, () => actions.save(entry)),
    newIconButton("delete", `Delete “${nameOf(entry)}”`, () => actions.remove(entry)),
  );
  return box;
}

/**
 * Show what its run does: {phase, text, why} of run-phase.js, or null.
 *
 * @param {HTMLElement} row
 * @param {{phase: string, text: string, why: string} | null} running
 */
export function markRow(row, running) {
  row.dataset.phase = running?.phase ?? "";
  const text = row.querySelector(".kept-phase");
  if (!(text instanceof HTMLElement)) return; // its name is being edited
  setText(text, running?.text ?? "");
  text.title = running?.why ?? "";
}

/**
 * Enter and leaving the field keep the name, Escape does not; an empty one is the first words.
 *
 * @param {Entry} entry
 * @param {Actions} actions
 */
function newNameField(entry, actions) {
  const field = el("input", "kept-name");
  field.value = nameOf(entry);
  field.maxLength = 200;
  field.setAttribute("aria-label", "Name of the conversation");
  let done = false;
  /** @param {string | null} title */
  const finish = (title) => {
    if (done) return;
    done = true;
    actions.rename(entry, title);
  };
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (isEnter(event)) finish(field.value);
    if (event.key !== "Escape" || isComposing(event)) return;
    event.preventDefault(); // else the drawer closes
    finish(null);
  });
  field.addEventListener("blur", () => finish(field.value));
  return field;
}
