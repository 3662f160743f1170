// The drawer of conversations: the list with search, and what can be done with each.

import { openFiles, saveAll, saveOne } from "./exchange.js";
import { ownPresets } from "../settings/own-presets.js";
import { stop } from "../turns/stop.js";
import { all, byId, el, setText, targetOf } from "../ui/dom.js";
import { isComposing, isEnter } from "../ui/enter-key.js";
import { bytes, count, plural } from "../ui/format.js";
import { on, state } from "../state.js";
import { readEntries } from "./database.js";
import { markRow, newRow, nameOf, updateRow } from "./drawer-row.js";
import { changeKept, entryOf, onKept, setUnkept } from "./keeper.js";
import { stopLeft } from "./left.js";
import { openConversation, remove, startNew, stay } from "./library.js";
import { runPhaseOf, setUpRunPhase } from "./run-phase.js";
import { hasWords, wordsOf } from "./search.js";

const drawer = byId("conversations");
const list = byId("kept-list");
const search = byId("kept-search");
const picker = byId("kept-files");
const DAY_MS = 24 * 60 * 60 * 1000;

/** @type {Entry[]} */
let entries = [];
/** Brings the last deleted conversation back. @type {(() => Promise<void>) | null} */
let undo = null;
/** id of the conversation that is being renamed. @type {string | null} */
let renaming = null;
/** What the list shows: its entries, and all of its rows but their facts. @type {{shown: Entry[], rows: string}} */
let drawn = { shown: [], rows: "" };

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
    const files = [...(picker.files ?? [])];
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
    const { code, message } = /** @type {Problem} */ (error);
    setUnkept({ code, message });
    complain(message);
  }
  if (!renaming) draw(); // else what is typed would be lost; the end of renaming draws
}

/**
 * Add those that were left before anything of them was stored.
 *
 * @param {Entry[]} stored
 * @returns {Entry[]}
 */
function withUnstored(stored) {
  const ids = new Set(stored.map(({ id }) => id));
  const others = state.left.flatMap(({ id, turns, conversation }) =>
    turns && conversation && !ids.has(id)
      ? [{ ...entryOf({ turns, conversation }), id, rev: 0, nBytes: 0 }]
      : [],
  );
  return [...others, ...stored];
}

/** Run what may fail for a reason that a person should read. @param {() => unknown} act */
async function attempt(act) {
  complain("");
  try {
    await act();
  } catch (error) {
    if (error instanceof TypeError) throw error;
    complain(/** @type {Error} */ (error).message);
  }
}

/** @param {string} text */
function complain(text) {
  setText(byId("kept-error"), text);
  byId("kept-error").hidden = text === "";
}

/** @param {string} text */
const say = (text) => setText(byId("kept-said"), text);

// ---- the list ----------------------------------------------------------------------------------

function draw() {
  const words = wordsOf(search.value);
  const found = entries.filter((entry) => hasWords(entry, words));
  drawList(found, words);
  setText(byId("kept-empty"), found.length ? "" : emptyText(words));
  const size = entries.reduce((sum, entry) => sum + entry.nBytes, 0);
  const all = entries.length ? `${plural(entries.length, "conversation")}, ${bytes(size)}` : "";
  setText(byId("kept-size"), all);
  setText(byId("kept-found"), words.length ? `${count(found.length)} found` : "");
  byId("kept-save-all").disabled = !entries.length && !ownPresets().length;
  markRows();
}

/**
 * A conversation that is being written is stored every two seconds: rows that are the same but for their
 * facts are not made again.
 *
 * @param {Entry[]} found
 * @param {string[]} words
 */
function drawList(found, words) {
  const groups = groupsOf(found);
  const shown = groups.flatMap(({ group }) => group);
  const named = groups.map(({ name, group }) => [name, group.map((entry) => [entry.id, nameOf(entry)])]);
  const now = JSON.stringify([words, renaming, state.conversation.id, named]);
  if (now === drawn.rows) {
    const rowsNow = all(list, ".kept");
    drawn.shown.forEach((entry, i) => updateRow(rowsNow[i], Object.assign(entry, shown[i]), words));
    return;
  }
  drawn = { shown, rows: now };
  const focused = document.activeElement;
  const id = focused ? idOf(focused) : undefined;
  const at = controlsOf(id).findIndex((button) => button === focused);
  list.replaceChildren(...groups.map(({ name, group }) => newGroup(name, group, words)));
  if (renaming) list.querySelector("input")?.select();
  else if (id) (controlsOf(id)[at] ?? rowOf(id))?.focus();
}

/** @param {string[]} words */
function emptyText(words) {
  if (words.length) return `Nothing found for “${search.value.trim()}”.`;
  return state.unkept
    ? ""
    : "Conversations are kept here as you write them, with every token and measurement. They stay " +
        "in this browser unless you save them as files.";
}

/** Return [name, entries] of each time that has any. @param {Entry[]} found */
function groupsOf(found) {
  const today = new Date().setHours(0, 0, 0, 0);
  const names = ["Today", "Yesterday", "Last 7 days", "Earlier"];
  const since = [today, today - DAY_MS, today - 6 * DAY_MS, -Infinity];
  const timeOf = (/** @type {Entry} */ { updated }) => since.findIndex((time) => updated >= time);
  return names.flatMap((name, i) => {
    const group = found.filter((entry) => timeOf(entry) === i);
    return group.length ? [{ name, group }] : [];
  });
}

/**
 * @param {string} name
 * @param {Entry[]} group
 * @param {string[]} words
 */
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
  for (const row of all(list, ".kept")) markRow(row, runPhaseOf(row.dataset.id ?? ""));
}

const rows = () => all(list, ".kept-open");
/** id of the conversation in whose row a node is. @param {Element} node */
const idOf = (node) => /** @type {HTMLElement | null} */ (node.closest("#kept-list li"))?.dataset.id;
/** @param {string | undefined} id */
const rowOf = (id) => rows().find((row) => idOf(row) === id);

/** The buttons of a row. @param {string | undefined} id @returns {HTMLElement[]} */
const controlsOf = (id) => [...(rowOf(id)?.closest("li")?.querySelectorAll("button") ?? [])];

const actions = {
  /** @param {Entry} entry */
  async open({ id }) {
    if (id !== state.conversation.id || state.replay)
      await attempt(async () => {
        await openConversation(id);
        drawer.close();
        byId("prompt").focus();
      });
    else {
      stay();
      drawer.close();
    }
  },

  /** @param {Entry} entry */
  stop({ id }) {
    if (id === state.conversation.id) stop();
    else stopLeft(id);
    rowOf(id)?.focus(); // the button goes
  },

  /** @param {Entry} entry */
  startRename({ id }) {
    renaming = id;
    draw();
  },

  /**
   * @param {Entry} entry
   * @param {string | null} title
   */
  async rename(entry, title) {
    renaming = null;
    if (title !== null && title.trim() !== nameOf(entry))
      await attempt(() => changeKept(entry.id, { title: title.trim() }));
    await refresh();
    if (!renaming) rowOf(entry.id)?.focus();
  },

  /** @param {Entry} entry */
  save: (entry) => attempt(() => saveOne(entry)),

  /** @param {Entry} entry */
  async remove(entry) {
    const next = neighbour(entry.id);
    undo = null;
    await attempt(async () => {
      undo = await remove(entry.id);
    });
    setText(byId("kept-undo-text"), `Deleted “${nameOf(entry)}”`);
    byId("kept-undo").hidden = !undo;
    await refresh();
    (rowOf(next) ?? search).focus();
  },
};

/** id of the row that takes the focus when this one goes. @param {string} id */
function neighbour(id) {
  const ids = rows().map((row) => idOf(row));
  const at = ids.indexOf(id);
  return ids[at + 1] ?? ids[at - 1];
}

async function bringBack() {
  byId("kept-undo").hidden = true;
  const back = undo;
  undo = null;
  if (back) await attempt(back);
  await refresh();
  search.focus();
}

// ---- keyboard ----------------------------------------------------------------------------------

/** @type {Record<string, number>} */
const STEPS = { ArrowDown: 1, ArrowUp: -1 };

/** @param {KeyboardEvent} event */
function onKey(event) {
  const { key } = event;
  const target = targetOf(event);
  const shown = rows();
  const at = shown.indexOf(target);
  if (key in STEPS && !isComposing(event) && (at >= 0 || target === search)) {
    event.preventDefault();
    (shown[at + STEPS[key]] ?? (at + STEPS[key] < 0 ? search : target)).focus();
  } else if (at >= 0 && (key === "Delete" || key === "F2")) {
    event.preventDefault();
    const entry = entries.find(({ id }) => id === idOf(target));
    if (!entry) return;
    if (key === "F2") actions.startRename(entry);
    else actions.remove(entry);
  } else if (isEnter(event) && target === search && shown.length) {
    event.preventDefault();
    shown[0].click();
  }
}
