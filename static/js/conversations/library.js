// Opening, leaving, deleting and restoring conversations that this browser keeps.

import { clearPatches } from "../interventions/intervention-store.js";
import { isEditing } from "../ui/message-editor.js";
import { refillsOf, save, unpackTurns } from "../turns/persist.js";
import { indexOfMessage, isWhole } from "../turns/summary.js";
import { indexOfPlace } from "../turns/turn-place.js";
import { goToEnd } from "../ui/following.js";
import { dropRefills, isRefilling, resumeRun } from "../turns/resume.js";
import { BadReplay } from "../replay/field-checks.js";
import { ownSegments } from "../replay/file.js";
import { closeReplay } from "../replay/playback-bar.js";
import { changed, hasEngine, lastTurn, liveState, on, setState, shownAnswer, state } from "../state.js";
import { showAnswer } from "../view.js";
import { countMeasurements, fillFrom, useArchive } from "../turns/archived-runs.js";
import { deleteConversation, putBack, readEntry, readFile, StorageError } from "./database.js";
import {
  announce,
  isUnsaved,
  keepNow,
  keepOther,
  keepSoon,
  newConversation,
  onKept,
} from "./keeper.js";
import { openFile, segmentsOf, turnsOf } from "./kept-file.js";
import {
  leaveRefilling,
  leaveRunning,
  leftOf,
  restoreLeft,
  stopLeft,
  takeLeft,
  titleOf,
} from "./left.js";

/** @typedef {{turns: Turn[], conversation: Conversation, answer: Answer | null}} Shown */

export function setUpLibrary() {
  onKept((id, elsewhere) => {
    if (id === state.conversation.id && (elsewhere || behind)) follow();
  });
  on("turns conversations", () => behind && follow());
}

// ---- opening and leaving -----------------------------------------------------------------------

/** Number of choices of what the page shows: a conversation that opens late gives way to a later one. */
let nChosen = 0;

/** What is on the page was chosen again: a conversation that is being opened stays away. */
export const stay = () => void (nChosen += 1);

/** Leave the conversation on the page for an empty one. Its run goes on (left.js). */
export function startNew() {
  stay();
  if (state.replay) closeReplay();
  leave();
  put([], newConversation());
}

/**
 * Open a kept conversation in place of the one on the page, unless another is chosen meanwhile. Throws
 * BadReplay or StorageError.
 *
 * @param {string} id
 */
export async function openConversation(id) {
  const choice = ++nChosen;
  await keepNow();
  const waiting = leftOf(id);
  const kept = waiting?.turns ? null : await (waiting ? readLeft(waiting) : readKept(id));
  if (choice !== nChosen) return;
  if (state.replay) closeReplay();
  leave();
  const left = takeLeft(id);
  if (left?.turns && left.conversation) {
    const { turns, conversation, answer, problem } = left;
    put(turns, conversation);
    setState({ active: answer?.running ? answer : null, problem });
  } else if (kept) show(/** @type {Shown} */ (kept));
  if (left && !left.isStored) keepSoon();
}

function leave() {
  if (!state.active) keepNow();
  else if (!isRefilling()) leaveRunning();
  else leaveRefilling(readLeftOrNull);
  dropRefills();
  clearPatches();
}

/**
 * Return {conversation, turns, answer} from storage. Throws BadReplay or StorageError.
 *
 * @param {string} key
 */
async function readKept(key) {
  const [entry, bytes] = await Promise.all([readEntry(key), readFile(key)]);
  if (!entry) throw new BadReplay("It was deleted in another tab.");
  return unpack(entry, await openFile(bytes));
}

/**
 * `answer`: the newest one. It is marked as left: its events so far came from storage.
 *
 * @param {Entry} entry
 * @param {ReplayFile.Replay} replay
 */
function unpack(entry, replay) {
  const { id, title, system, created, rev, writer, branchedFrom = null } = entry;
  const turns = turnsOf(replay, entry.runs, state.hello);
  segmentsOf(turns).forEach(countMeasurements);
  const last = turns.at(-1);
  const answer = shownAnswer(last?.role === "model" ? last : null);
  if (answer?.running && answer.segment) answer.segment.left = true;
  const conversation = { id, title, system, created, rev, writer, own: false, branchedFrom };
  return { conversation, turns, answer };
}

/** @param {Shown} shown */
function show({ conversation, turns, answer }) {
  put(turns, conversation);
  if (!answer?.running) return;
  setState({ active: answer });
  if (hasEngine()) resumeRun();
}

/**
 * Show these turns as the page's conversation.
 *
 * @param {Turn[]} turns
 * @param {Conversation} conversation
 */
function put(turns, conversation) {
  keepOther(conversation);
  setState({ turns, active: null, problem: null, copied: "" });
  const mode = turns.at(-1)?.mode;
  if (mode && (state.hello?.model.chat ?? true)) setState({ mode });
  for (const answer of turns.flatMap(({ answers = [] }) => answers)) endLostRuns(answer, turns);
  showAnswer(shownAnswer(lastTurn()));
  save();
  goToEnd();
  changed("turns", "tokens", "focus", "settings", "conversations", "metric", "counted");
}

/**
 * Only the newest answer can still be running; all others have ended.
 *
 * @param {Answer} answer
 * @param {Turn[]} turns
 */
function endLostRuns(answer, turns) {
  const newest = shownAnswer(turns.at(-1));
  for (const segment of answer.segments) {
    if (!segment.running || (answer === newest && segment === answer.segment)) continue;
    Object.assign(segment, { state: "done", reason: "cancelled" });
  }
}

// ---- branches ----------------------------------------------------------------------------------

/**
 * Return the turns of the page's `conversation` before the one at `place` (turns/turn-place.js) as a
 * conversation of its own: {turns, conversation}. It has their summaries, also those that were written
 * later. Both the turns and what was measured come from storage, so the page's are left alone.
 * Throws BadReplay or StorageError.
 *
 * @param {Conversation} conversation
 * @param {{message: number, answer?: number}} place
 * @param {string} title
 */
export async function branchOf(conversation, place, title) {
  if (!conversation.id || state.unkept) keepSoon();
  await keepNow();
  if (state.unkept || isUnsaved())
    throw new StorageError(
      "storage_off",
      "This conversation cannot be stored, and the branch would take its place. Save it as a file, " +
        "and start a new one.",
    );
  const id = conversation.id ?? "";
  const { turns } = await readKept(id);
  const { message } = place;
  const end = indexOfPlace(turns, place);
  const asked = Math.min(end, indexOfMessage(turns, message)); // a summary comes before a message
  const later = turns.slice(end).filter((turn) => isWhole(turn) && turn.summary.covers <= message);
  const from = { id, title: titleOf({ conversation, turns }), ...place };
  const branch = { ...newConversation(conversation.system), title, branchedFrom: from };
  const kept = [...turns.slice(0, asked), ...later, ...turns.slice(asked, end)];
  return { turns: kept, conversation: branch };
}

/**
 * Show a branch in place of the page's conversation. Returns a function that goes back.
 *
 * @param {{turns: Turn[], conversation: Conversation}} branch
 * @param {Mode} mode
 */
export function showBranch(branch, mode) {
  const { turns, conversation, mode: before } = state;
  stay();
  leave();
  put(branch.turns, branch.conversation);
  setState({ mode });
  return () => {
    put(turns, conversation);
    setState({ mode: before });
  };
}

// ---- conversations that were left --------------------------------------------------------------

/**
 * Return {conversation, turns, answer, isStored} of a conversation that is not in memory, a `Left`.
 * Throws as `readKept` does.
 *
 * @param {Left} left
 */
async function readLeft({ id, unstored }) {
  return unstored ? readUnstored(unstored) : { ...(await readKept(id)), isStored: true };
}

/** @param {Left} one */
const readLeftOrNull = (one) => readLeft(one).catch(() => null);

/**
 * Return the same of a conversation whose text the tab has, with the tokens that storage has.
 *
 * @param {NonNullable<Left["unstored"]>} options
 */
async function readUnstored({ conversation, turns: packed }) {
  const turns = unpackTurns(packed);
  const { entry, runs } = await readArchive(conversation.id ?? "");
  adoptRevision(conversation, turns, entry);
  const answer = shownAnswer(turns.at(-1));
  const awaited = answer?.running ? answer.segment : null; // its events are asked for again
  for (const turn of turns) if (turn.role === "model") fillTurn(turn, runs, awaited);
  return { conversation, turns, answer, isStored: false };
}

/**
 * A conversation was written by the tab before it was loaded again, `entry` of storage, if at all. The
 * writer's name alone does not say so: a conversation that was opened here bears that of another tab,
 * which may have gone on, and a tab whose own storage was full remembers older turns.
 *
 * @param {Conversation} conversation
 * @param {Turn[]} turns
 * @param {Entry | null} entry
 */
function adoptRevision(conversation, turns, entry) {
  if (!entry) conversation.rev = 0;
  else if (entry.writer === conversation.writer) {
    const here = new Set(segmentsOf(turns).map(({ id }) => id));
    if (entry.runs.every((run) => here.has(run))) conversation.rev = entry.rev;
  }
}

/** Take up the conversations that this tab had left before a reload. @param {LeftMark[]} marks */
export const restoreLeftConversations = (marks) => restoreLeft(marks, readLeftOrNull);

// ---- another tab -------------------------------------------------------------------------------

/** Is there something of another tab that is shown once nothing is written here? */
let behind = false;

const isChangedHere = () =>
  !!state.active || isEditing() || state.conversation.own || isUnsaved() || state.replay !== null;

/** Show what another tab has written in this conversation, unless it is being changed here. */
async function follow() {
  const { id, rev } = state.conversation;
  behind = isChangedHere();
  if (behind || !id) return;
  const entry = await readEntry(id).catch(() => null);
  if (!entry || entry.rev <= rev) return;
  const replay = await openFile(await readFile(id)).catch(() => null);
  const isSame = state.conversation.id === id && state.conversation.rev === rev;
  behind = isSame && isChangedHere();
  if (!replay || !isSame || behind) return;
  dropRefills(); // the turns that they were for go
  show(unpack(entry, replay));
}

// ---- after a reload ----------------------------------------------------------------------------

/**
 * Make what storage has of a restored conversation available: runs that the server no longer has
 * are taken from there. `turns`: of the tab's own storage, which has only the text.
 *
 * @param {Turn[]} turns
 */
export async function restoreKept(turns) {
  const { conversation } = state;
  if (!conversation.id) return;
  const archive = readArchive(conversation.id);
  useArchive(archive.then(({ runs }) => runs));
  const { entry, runs } = await archive;
  if (state.conversation !== conversation) return;
  if (!entry) conversation.id = null;
  adoptRevision(conversation, turns, entry);
  const older = liveState().turns === turns ? turns.slice(0, -1) : [];
  for (const turn of older) if (turn.role === "model") fillTurn(turn, runs);
  changed("turns", "tokens", "conversations");
  if (entry && entry.rev > conversation.rev) follow();
}

/** Return {entry, runs}; `runs` as in `useArchive`. @param {string} id */
async function readArchive(id) {
  try {
    const entry = await readEntry(id);
    if (!entry) return { entry: null, runs: new Map() };
    const replay = await openFile(await readFile(id));
    const runs = new Map();
    for (const answer of turnsOf(replay, entry.runs, state.hello).flatMap(({ answers = [] }) => answers))
      for (const segment of ownSegments(answer))
        runs.set(segment.id, { segment, text: answer.segmentText(segment) });
    return { entry, runs };
  } catch {
    return { entry: null, runs: new Map() }; // the tab's own storage has the text
  }
}

/**
 * Fill the segments of a turn, but `except`, of which only the text is here.
 *
 * @param {ModelTurn} turn
 * @param {Archive} runs
 * @param {Segment | null} [except]
 */
function fillTurn(turn, runs, except = null) {
  for (const { answer, segment } of refillsOf(turn))
    if (segment.textOnly !== null && segment !== except) fillFrom(runs, answer, segment);
}

// ---- deleting ----------------------------------------------------------------------------------

/**
 * Delete a conversation. Resolves to a function that brings it back, and onto the page if it was
 * there and the page is empty; null if it was deleted already.
 *
 * @param {string} id
 */
export async function remove(id) {
  const wasOpen = state.conversation.id === id;
  if (wasOpen) startNew(); // first, so that a run cannot store it again
  stopLeft(id);
  takeLeft(id);
  await keepNow();
  const removed = await deleteConversation(id);
  announce(id);
  if (!removed) return null;
  return async () => {
    await putBack(removed);
    announce(id);
    if (wasOpen && !state.turns.length && !state.replay) await openConversation(id);
  };
}
