// @ts-nocheck
// The drawer of conversations: the list with search, and what can be done with each.

import { openFiles, saveAll, saveOne } from "./exchange.js";
import { ownPresets } from "../settings/own-presets.js";
import { stop } from "../turns/stop.js";
import { byId, el, setText } from "../ui/dom.js";
import { isComposing, isEnter } from "../ui/enter-key.js";
import { bytes, count, plural } from "../ui/format.js";
import { on, state } from "../state.js";
import { readEntries } from "./database.js";
import { markRow, newRow, nameOf } from "./drawer-row.js";
import { changeKept, entryOf, onKept, setUnkept } from "./keeper.js";
import { stopLeft } from "./left.js";
import { openConversation, remove, startNew } from "./library.js";
import { runPhaseOf, setUpRunPhase } from "./run-phase.js";
import { hasWords, wordsOf } from "./search.js";

const drawer = byId("conversations");
const list = byId("kept-list");
const search = byId("kept-search");
const picker = byId("kept-files");
const DAY_MS = 24 * 60 * 60 * 1000;

let entries = [];
/** Brings the last deleted conversation back, or null. */
let undo = null;
/** id of the conversation that is being renamed, or null. */
let renaming = null;

export function setUpDrawer() {
  setUpRunPhase();
  byId("conversations-open").addEventListener("click", () => openDrawer());
  drawer.addEventListener("click", ({ target }) => target === drawer && drawer.close());
  byId("conversations-close").addEventListener("click", () => drawer.close());
  byId("kept-new").addEventListener("click", () => {
    drawer.close();
    startNew();
    byId("prompt").focus();
  });
  search.addEventListener("input", draw);
  drawer.addEventListener("keydown", onKey);
  byId("kept-undo-button").addEventListener("click", bringBack);
  byId("kept-save-all").addEventListener("click", () => attempt(() => saveAll(entries)));
  byId("kept-import").addEventListener("click", () => picker.click());
  picker.addEventListener("change", async () => {
    const files = [...picker.files];
    picker.value = "";
    await attempt(async () => say(await openFiles(files)));
    refresh();
  });
  onKept(() => drawer.open && refresh());
  on("conversations tokens turns", () => drawer.open && markRows());
}

/** Open the drawer; the search field has the focus. */
export async function openDrawer() {
  if (drawer.open) return search.focus();
  complain("");
  say("");
  renaming = null;
  search.value = "";
  drawer.showModal();
  search.focus();
  return refresh();
}

async function refresh() {
  try {
    entries = withUnstored(await readEntries());
  } catch (error) {
    entries = withUnstored([]);
    setUnkept(error);
    complain(error.message);
  }
  if (!renaming) draw(); // else what is typed would be lost; the end of renaming draws
}

/** Add those that were left before anything of them was stored. */
function withUnstored(stored) {
  const ids = new Set(stored.map(({ id }) => id));
  const others = state.left.filter(({ id, turns }) => turns && !ids.has(id));
  return [...others.map((one) => ({ ...entryOf(one), nBytes: 0 })), ...stored];
}

/** Run what may fail for a reason that a person should read. */
async function attempt(act) {
  complain("");
  try {
    await act();
  } catch (error) {
    if (error.name === "TypeError") throw error;
    complain(error.message);
  }
}

function complain(text) {
  setText(byId("kept-error"), text);
  byId("kept-error").hidden = text === "";
}

const say = (text) => setText(byId("kept-said"), text);

// ---- the list ----------------------------------------------------------------------------------

function draw() {
  const words = wordsOf(search.value);
  const found = entries.filter((entry) => hasWords(entry, words));
  const focused = document.activeElement?.closest?.("#kept-list li")?.dataset.id;
  list.replaceChildren(...groupsOf(found).map(([name, group]) => newGroup(name, group, words)));
  setText(byId("kept-empty"), found.length ? "" : emptyText(words));
  const size = entries.reduce((sum, entry) => sum + entry.nBytes, 0);
  const all = entries.length ? `${plural(entries.length, "conversation")}, ${bytes(size)}` : "";
  setText(byId("kept-size"), all);
  setText(byId("kept-found"), words.length ? `${count(found.length)} found` : "");
  byId("kept-save-all").disabled = !entries.length && !ownPresets().length;
  markRows();
  if (renaming) list.querySelector("input")?.select();
  else if (focused) rows().find((row) => row.closest("li").dataset.id === focused)?.focus();
}

function emptyText(words) {
  if (words.length) return `Nothing found for “${search.value.trim()}”.`;
  return state.unkept
    ? ""
    : "Conversations are kept here as you write them, with every token and measurement. They stay " +
        "in this browser unless you save them as files.";
}

/** Return [name, entries] of each time that has any. */
function groupsOf(found) {
  const today = new Date().setHours(0, 0, 0, 0);
  const times = [
    ["Today", today],
    ["Yesterday", today - DAY_MS],
    ["Last 7 days", today - 6 * DAY_MS],
    ["Earlier", -Infinity],
  ];
  const groups = new Map(times.map(([name]) => [name, []]));
  for (const entry of found)
    groups.get(times.find(([, since]) => entry.updated >= since)[0]).push(entry);
  return [...groups].filter(([, group]) => group.length);
}

function newGroup(name, group, words) {
  const box = el("section");
  const heading = el("h3", "kept-when", name);
  const rowList = el("ul");
  rowList.append(
    ...group.map((entry) =>
      newRow(entry, {
        words,
        current: entry.id === state.conversation.id,
        renaming: entry.id === renaming,
        actions,
      }),
    ),
  );
  box.append(heading, rowList);
  return box;
}

/** Show what each conversation's run does; the rows stay, with the focus. */
function markRows() {
  for (const row of list.querySelectorAll(".kept")) markRow(row, runPhaseOf(row.dataset.id));
}

const rows = () => [...list.querySelectorAll(".kept-open")];

const actions = {
  async open({ id }) {
    if (id !== state.conversation.id || state.replay)
      await attempt(async () => {
        await openConversation(id);
        drawer.close();
        byId("prompt").focus();
      });
    else drawer.close();
  },

  stop({ id }) {
    if (id === state.conversation.id) stop();
    else stopLeft(id);
    rows().find((row) => row.closest("li").dataset.id === id)?.focus(); // the button goes
  },

  startRename({ id }) {
    renaming = id;
    draw();
  },

  async rename(entry, title) {
    renaming = null;
    if (title !== null && title.trim() !== nameOf(entry))
      await attempt(() => changeKept(entry.id, { title: title.trim() }));
    await refresh();
    if (!renaming) rows().find((row) => row.closest("li").dataset.id === entry.id)?.focus();
  },

  save: (entry) => attempt(() => saveOne(entry)),

  async remove(entry) {
    const next = neighbour(entry.id);
    undo = null;
    await attempt(async () => {
      undo = await remove(entry.id);
    });
    setText(byId("kept-undo-text"), `Deleted “${nameOf(entry)}”`);
    byId("kept-undo").hidden = !undo;
    await refresh();
    (rows().find((row) => row.closest("li").dataset.id === next) ?? search).focus();
  },
};

/** id of the row that takes the focus when this one goes. */
function neighbour(id) {
  const ids = rows().map((row) => row.closest("li").dataset.id);
  const at = ids.indexOf(id);
  return ids[at + 1] ?? ids[at - 1];
}

async function bringBack() {
  byId("kept-undo").hidden = true;
  const back = undo;
  undo = null;
  await attempt(back);
  await refresh();
  search.focus();
}

// ---- keyboard ----------------------------------------------------------------------------------

const STEPS = { ArrowDown: 1, ArrowUp: -1 };

function onKey(event) {
  const { key, target } = event;
  const all = rows();
  const at = all.indexOf(target);
  if (key in STEPS && !isComposing(event) && (at >= 0 || target === search)) {
    event.preventDefault();
    (all[at + STEPS[key]] ?? (at + STEPS[key] < 0 ? search : target)).focus();
  } else if (at >= 0 && (key === "Delete" || key === "F2")) {
    event.preventDefault();
    const entry = entries.find(({ id }) => id === target.closest("li").dataset.id);
    if (key === "F2") actions.startRename(entry);
    else actions.remove(entry);
  } else if (isEnter(event) && target === search && all.length) {
    event.preventDefault();
    all[0].click();
  }
}
