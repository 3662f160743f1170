// Keeps the page's conversation in the browser's storage while it is written.
//
// Tabs tell each other what they wrote. A conversation that another tab has changed since it was
// opened here is not overwritten: what was written here becomes a copy.

import { partsOf } from "../turns/message-parts.js";
import { alsoSave, save, saveSoon } from "../turns/persist.js";
import { isRefilling } from "../turns/resume.js";
import { newId } from "../net/new-id.js";
import { changed, liveState, setConversation, setState, state } from "../state.js";
import { changeEntry, readEntry, StorageError, writeConversation } from "./database.js";
import { packConversation, segmentsOf, snapshotOf } from "./kept-file.js";

/** Shortest time between two saves while text is written, ms. */
const SAVE_EVERY_MS = 2000;
/** The same for one that was left. After a reload the server sends what is missing. */
const LEFT_EVERY_MS = 10_000;
/** A save may take this share of the time at most. */
const MAX_SHARE = 0.05;
const MAX_HEADING = 100;
/** Longest text that search looks in. */
const MAX_TEXT = 200_000;

/** Name of this page among the writers. */
const PAGE = newId();

const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("tokenglass") : null;
/** @type {Array<(id: string | null, elsewhere: boolean) => void>} */
const listeners = [];

/**
 * Call `listener(id, elsewhere)` when a conversation was changed; id null: many.
 *
 * @param {(id: string | null, elsewhere: boolean) => void} listener
 */
export function onKept(listener) {
  listeners.push(listener);
}

/** Tell this page and the other tabs that a conversation changed. @param {string | null} id */
export function announce(id) {
  channel?.postMessage({ id });
  notify(id, false);
}

/**
 * @param {string | null} id
 * @param {boolean} elsewhere
 */
function notify(id, elsewhere) {
  for (const listener of listeners) listener(id, elsewhere);
}

channel?.addEventListener("message", ({ data }) => notify(data.id, true));

/** Return a conversation that is not kept yet; see `conversation` of state.js. */
export const newConversation = (system = "") => ({
  id: null,
  title: "",
  system,
  created: Date.now(),
  rev: 0,
  writer: PAGE,
  own: false,
  branchedFrom: null,
});

let timer = 0;
/** When the last save ended (performance.now), and how long it took, ms. */
let savedAt = -Infinity;
let took = 0;
/** The save under way; saves come one after the other. */
let saving = Promise.resolve();
/** Is there anything to save? */
let due = false;
/** Number of saves that have not ended. */
let nSaving = 0;

/** Is something of the page's conversation not stored yet? */
export const isUnsaved = () => due || nSaving > 0;
alsoSave({ unsaved: isUnsaved });

/**
 * Save the conversation soon. `own`: something was changed here, rather than received from a run
 * that another tab may be following, too.
 */
export function keepSoon(own = true) {
  if (own) setConversation({ own });
  due = true;
  const pause = Math.max(SAVE_EVERY_MS, took / MAX_SHARE) - (performance.now() - savedAt);
  timer ||= setTimeout(keepNow, Math.max(0, pause));
}

/** Save the conversation if anything changed; resolves when it is stored or cannot be. */
export function keepNow() {
  clearTimeout(timer);
  timer = 0;
  if (due && isRefilling()) timer = setTimeout(keepNow, SAVE_EVERY_MS); // its tokens are coming
  if (!due || isRefilling() || !isKeepable()) return saving;
  due = false;
  return store({ turns: liveState().turns, conversation: state.conversation });
}

/**
 * Store a conversation once those before it are stored. Resolves when it is or cannot be.
 *
 * @param {{turns: Turn[], conversation: Conversation}} options
 */
function store({ turns, conversation }) {
  const { hello } = liveState();
  const snapshot = { turns: snapshotOf(turns), hello, conversation, own: conversation.own };
  conversation.own = false;
  const isAnswered = segmentsOf(turns).every(({ running, accepted }) => accepted || !running);
  const began = performance.now();
  nSaving += 1;
  saving = saving
    .then(() => keep(snapshot))
    .then(() => {
      if (isAnswered) noteStored(conversation);
      setUnkept(null);
    })
    .catch((error) => {
      conversation.own ||= snapshot.own;
      reportUnkept(error, conversation.id);
      if (conversation !== state.conversation) setTimeout(retryLeft, LEFT_EVERY_MS, { turns, conversation });
    })
    .finally(() => {
      nSaving -= 1;
      savedAt = performance.now();
      took = savedAt - began;
      changed("conversations"); // what other tabs wrote meanwhile can be shown now
    });
  return saving;
}

/** Conversation that was left → when it was last stored (performance.now). */
const leftStoredAt = new WeakMap();

/**
 * Store a conversation that was left while it was written, `Left` of left.js: now, or when that was
 * not done for a while.
 *
 * @param {{turns: Turn[] | null, conversation: Conversation | null}} options
 * @param {boolean} now
 */
export function keepLeft({ turns, conversation }, now) {
  if (!conversation || !turns) return;
  const since = performance.now() - (leftStoredAt.get(conversation) ?? -Infinity);
  if (!now && since < Math.max(LEFT_EVERY_MS, took / MAX_SHARE)) return;
  if (!liveState().hello) return;
  leftStoredAt.set(conversation, performance.now());
  conversation.own = true;
  store({ turns, conversation });
}

/**
 * The tab need not remember the text of a conversation that was left any more.
 *
 * @param {Conversation} conversation
 */
function noteStored(conversation) {
  const one = state.left.find((each) => each.conversation === conversation);
  if (one) one.isStored = true;
}

/**
 * Store a conversation that was left and could not be stored, unless it was deleted meanwhile.
 *
 * @param {{turns: Turn[], conversation: Conversation}} options
 */
function retryLeft({ turns, conversation }) {
  if (conversation === state.conversation) keepSoon();
  else if (state.left.some((one) => one.conversation === conversation))
    keepLeft({ turns, conversation }, true);
}

/** Keep another conversation from now on. @param {Conversation} conversation */
export function keepOther(conversation) {
  clearTimeout(timer);
  timer = 0;
  due = false;
  setState({ conversation });
}

/** Not before the server took the first prompt: a refused one leaves no conversation. */
function isKeepable({ turns, hello } = liveState()) {
  const [first] = segmentsOf(turns);
  return hello !== null && first !== undefined && (first.accepted || first.textOnly !== null);
}

/**
 * @typedef {{turns: Turn[], hello: ToPage.Hello | null, conversation: Conversation, own: boolean}} Snapshot
 */

/**
 * @param {Snapshot} snapshot
 * @returns {Promise<void>}
 */
async function keep(snapshot) {
  const { conversation } = snapshot;
  conversation.id ??= newId();
  save(); // a reload from here on finds this id, or it would make a second conversation
  const bytes = await packConversation(snapshot);
  const entry = { ...entryOf(snapshot), id: conversation.id, nBytes: bytes.byteLength };
  const written = await writeConversation(entry, bytes, conversation.rev, snapshot.own);
  if (written && written.writer !== PAGE) return notify(conversation.id, true); // it has all this
  if (written) {
    const { rev, title, system } = written;
    if (rev > conversation.rev + 1) Object.assign(conversation, { title, system }); // another tab's
    Object.assign(conversation, { rev, writer: PAGE });
  }
  if (!written && snapshot.own) return keepCopy(snapshot);
  saveSoon(); // the tab remembers which revision it shows
  announce(conversation.id);
  return undefined;
}

/**
 * Another tab has changed or deleted this conversation: keep what is here as another one.
 *
 * @param {Snapshot} snapshot
 * @returns {Promise<void>}
 */
function keepCopy(snapshot) {
  const { conversation } = snapshot;
  const title = conversation.title || headingOf(snapshot.turns);
  Object.assign(conversation, { id: null, rev: 0, title: `${title} (copy)`, created: Date.now() });
  if (conversation === state.conversation) setState({ copied: conversation.title });
  changed("turns", "conversations");
  return keep(snapshot);
}

/**
 * Return the entry of a conversation, without what writing adds.
 *
 * @param {{turns: Turn[], conversation: Conversation}} options
 */
export function entryOf({ turns, conversation }) {
  const segments = segmentsOf(turns);
  return {
    id: conversation.id,
    writer: PAGE,
    title: conversation.title,
    heading: headingOf(turns),
    system: conversation.system,
    created: conversation.created,
    branchedFrom: conversation.branchedFrom ?? null,
    updated: Date.now(),
    model: segments.findLast(({ model }) => model)?.model ?? "",
    text: textOf(turns).slice(0, MAX_TEXT),
    runs: segments.map(({ id }) => id),
    nTokens: segments.reduce((n, { nTokens, nGiven }) => n + nTokens - nGiven, 0),
  };
}

/** The first words of a conversation. @param {Turn[]} turns */
export function headingOf(turns) {
  const first = turns.find(({ role, given }) => role === "user" || given);
  const { text, files } =
    first?.role === "user" ? partsOf(first) : { text: first?.given ?? "", files: [] };
  const said = text.trim() || files[0]?.name || "Untitled";
  const line = said.split("\n", 1)[0].trim();
  return line.length > MAX_HEADING ? `${line.slice(0, MAX_HEADING - 1)}…` : line;
}

/** @param {Turn[]} turns */
const textOf = (turns) =>
  turns
    .flatMap(textsOfTurn)
    .filter((text) => text !== "")
    .join("\n");

/** @param {Turn} turn */
function textsOfTurn({ role, text, given, answers, summary }) {
  if (role === "user") return [text];
  const written = answers.map(({ segments }) => textOfSegments(segments));
  return [given, ...written, summary?.edited?.text ?? ""];
}

/**
 * Text of an answer; the tokens are those of its events, as a snapshot has them.
 *
 * @param {Segment[]} segments
 */
const textOfSegments = (segments) =>
  segments
    .map(({ textOnly, branch, events }) => textOnly ?? textGivenTo(branch, events) + textOfTokens(events))
    .join("");

/**
 * Text that a branch was given; a run that continues another was given that one's, which is there already.
 *
 * @param {Branch | null} branch
 * @param {RunEvent[]} events
 */
const textGivenTo = (branch, [accepted]) =>
  branch && accepted?.type === "accepted" ? accepted.texts.join("") : "";

/** @param {RunEvent[]} events */
const textOfTokens = (events) => events.map((event) => ("text" in event ? event.text : "")).join("");

// ---- names and system prompts ------------------------------------------------------------------

/**
 * Change the name or the system prompt of the page's conversation.
 *
 * @param {Partial<Pick<Entry, "title" | "system">>} fields
 */
export function editConversation(fields) {
  setConversation(fields);
  saveSoon();
  if (state.conversation.id) changeKept(state.conversation.id, fields);
  changed("conversations", "turns");
}

/**
 * Change fields of a kept conversation, which may be the page's.
 *
 * @param {string} id
 * @param {Partial<Pick<Entry, "title" | "system">>} fields
 */
export async function changeKept(id, fields) {
  nSaving += 1;
  saving = saving
    .then(async () => {
      const before = await readEntry(id);
      const written = before && (await changeEntry(id, { ...fields, writer: PAGE }));
      const { conversation } = state;
      if (written && conversation.id === id) {
        Object.assign(conversation, fields);
        if (before.rev === conversation.rev) conversation.rev = written.rev;
        saveSoon();
        changed("conversations", "turns");
      }
      announce(id);
    })
    .catch((error) => reportUnkept(error, id))
    .finally(() => {
      nSaving -= 1;
      changed("conversations"); // what other tabs wrote meanwhile can be shown now
    });
  return saving;
}

// ---- errors ------------------------------------------------------------------------------------

/**
 * Say that the conversation `id` could not be stored; null: it has none yet.
 *
 * @param {unknown} error
 * @param {string | null} id
 */
function reportUnkept(error, id) {
  due ||= id === state.conversation.id; // the next change tries again
  if (!(error instanceof StorageError)) reportError(error);
  const { message } = /** @type {Error} */ (error);
  const code = error instanceof StorageError ? error.code : "storage_off";
  setUnkept({ code, message });
}

/** @param {Unkept | {code: string, message: string} | null} unkept */
export function setUnkept(unkept) {
  if (state.unkept?.message === unkept?.message) return;
  setState({ unkept: unkept && { ...unkept, dismissed: false } });
}

/** Hide the notice about storage until its reason changes. */
export function dismissUnkept() {
  if (state.unkept) setState({ unkept: { ...state.unkept, dismissed: true } });
}
