// Keeps the address of the page and what it shows the same: going back and forward, links, reloads.

import { openConversation, startNew, stay } from "../conversations/library.js";
import { lessonName, startLesson } from "../lessons/entry.js";
import { closeInstrument, openByName, openInstrumentName } from "../look/frame.js";
import { openReplayAt } from "../replay/dialog.js";
import { closeReplay } from "../replay/playback-bar.js";
import { liveState, on, setState, state } from "../state.js";
import { pin, promptLength, view } from "../view.js";
import { byId } from "../ui/dom.js";
import { BadAddress, nameOfToken, readAddress, replayAddress, tokenAt, writeAddress } from "../ui/address.js";

/** Browsers bound how often an address may be written; tokens are focused by held keys. */
const WRITE_AFTER_MS = 300;

/** @typedef {import("../ui/address.js").Shown} Place */

/**
 * What of an address waits for the model: its answers are unpacked for one. null: nothing. A replay
 * waits for none: it names its own.
 *
 * @type {Place | null}
 */
let awaited = null;
/** Number of addresses that are being followed; nothing is written meanwhile. */
let nFollowing = 0;
let timer = 0;
/** What the last written address shows. @type {ReturnType<typeof now>} */
let written;
/** A token that is focused once its answer is here, or null. @type {string | null} */
let token = null;

/** `isRestored`: the page shows what the tab had before it was loaded again. @param {boolean} isRestored */
export function setUpNavigation(isRestored) {
  byId("copy-link").addEventListener("click", copyLink);
  const shown = read();
  const [load] = /** @type {PerformanceNavigationTiming[]} */ (
    performance.getEntriesByType("navigation")
  );
  // The tab's own conversation is restored already, and may not have been stored.
  if (shown?.chat === state.conversation.id) delete shown.chat;
  else if (isRestored && load.type === "reload") {
    // It was left just before: the address is written a frame later.
    delete shown?.chat;
    delete shown?.token;
  }
  try {
    if (shown?.look) look(shown.look);
  } catch (error) {
    complain(error);
    delete shown?.look;
  }
  written = now();
  awaited = shown ?? {};
  if (shown?.replay) follow(shown, false);
  on("hello", () => {
    if (!liveState().hello || awaited === null) return;
    const first = awaited;
    awaited = null;
    follow(first, false);
  });
  on("conversations turns focus hello look replay size", write);
  on("tokens turns", focusAwaited);
  addEventListener("popstate", () => {
    const isOwn = history.state?.page === true;
    const there = read();
    if (there) follow(there, isOwn);
    else if (isOwn && location.hash === "") follow({}, true);
    else if (closeInstrument()) (/** @type {HTMLElement | null} */ (document.querySelector(":target")))?.focus();
  });
}

/** Return the parts of the address, or null if there are none, or it is bad. */
function read() {
  try {
    return readAddress(location.hash);
  } catch (error) {
    complain(error);
    return null;
  }
}

/** @param {unknown} error */
function complain(error) {
  if (!(error instanceof Error) || error.name === "TypeError") throw error;
  setState({ problem: { code: "address", message: error.message } });
}

// ---- following ---------------------------------------------------------------------------------

/**
 * Show what an address says. `isOwn`: the page wrote it, so what is absent from it was not there.
 *
 * @param {Place} there
 * @param {boolean} isOwn
 */
async function follow(there, isOwn) {
  nFollowing += 1;
  try {
    if (there.replay) awaited = null;
    if (awaited !== null) Object.assign(awaited, there);
    else await followReady(there, isOwn);
    if (there.look) look(there.look);
    else if (isOwn || !Object.keys(there).length) closeInstrument();
  } catch (error) {
    complain(error);
  }
  nFollowing -= 1;
  written = now();
  write();
}

/** @param {Place} place @param {boolean} isOwn */
async function followReady({ chat, model, replay, token: wanted, lesson }, isOwn) {
  if (replay && replay !== state.replay?.address)
    await openReplayAt(replayAddress(replay, document.baseURI), replay);
  else if (isOwn && !replay && state.replay?.address) closeReplay();
  if (chat && chat !== state.conversation.id) await openConversation(chat);
  else if (isOwn && !chat && state.conversation.id && state.turns.length && !state.replay) startNew();
  else if (isOwn || chat) stay();
  if (wanted) {
    token = wanted;
    focusAwaited();
  } else if (isOwn && view.pinned !== null) pin(null);
  if (lesson && lesson !== lessonName() && !startLesson(lesson))
    throw new BadAddress("It names a lesson that this page does not have.");
  const loaded = state.hello?.model.name;
  if (!isOwn && model && model !== loaded)
    throw new BadAddress(`It is about another model, “${model.slice(0, 80)}”; ${loaded} is loaded.`);
}

/** @param {string} name */
function look(name) {
  if (name !== openInstrumentName() && !openByName(name))
    throw new BadAddress("It names an instrument that this page or this model does not have.");
}

function focusAwaited() {
  if (token === null || !view.answer?.tokens.length) return;
  const index = tokenAt(token, promptLength());
  if (index >= view.answer.tokens.length && view.answer.running) return;
  token = null;
  pin(index);
}

// ---- writing -----------------------------------------------------------------------------------

const now = () => ({
  conversation: state.conversation,
  id: state.conversation.id,
  look: openInstrumentName(),
  replay: state.replay?.address ?? "",
});

/** Return the hash of what is shown. */
function hashNow() {
  // A lesson asks its own question of any model.
  if (lessonName()) return writeAddress({ lesson: lessonName() });
  const { id } = state.conversation;
  const replay = state.replay?.address ?? "";
  const place = replay ? { replay } : { chat: id ?? "", model: state.hello?.model.name };
  const { pinned, answer } = view;
  const focus = pinned !== null && answer ? nameOfToken(pinned, promptLength()) : (token ?? "");
  return writeAddress({ ...place, look: openInstrumentName() ?? "", token: focus });
}

function write() {
  clearTimeout(timer);
  if (awaited !== null || nFollowing) return;
  const shown = now();
  const isOther =
    shown.look !== written.look ||
    shown.replay !== written.replay ||
    (shown.conversation !== written.conversation && shown.id !== written.id);
  const isKept = shown.id !== written.id; // a new conversation has its id when it is first kept
  written = shown;
  // The tour's steps are no places to go back to.
  if (isOther && byId("tour").hidden) put("pushState");
  else if (isOther || isKept) put("replaceState");
  else timer = setTimeout(put, WRITE_AFTER_MS, "replaceState");
}

/** @param {"pushState" | "replaceState"} how */
function put(how) {
  const hash = hashNow();
  if (hash === location.hash && history.state?.page) return;
  try {
    history[how]({ page: true }, "", hash || location.pathname + location.search);
  } catch {
    // Written too often; the next change writes it.
  }
}

/** Copy the address of what is shown. */
async function copyLink() {
  put("replaceState");
  let said = "Link copied";
  try {
    await navigator.clipboard.writeText(location.href);
  } catch {
    said = "The browser did not allow copying; the link is in its address bar.";
  }
  byId("replay-size").textContent = said;
}
