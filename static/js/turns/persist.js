// Storage: the conversation (per tab) and the settings (per browser) survive a reload. Conversations that the
// browser keeps are in conversations/database.js.
//
// Tokens of the last answer and its versions are not stored: the server sends them again. Their
// text is stored in case the server no longer has them.

import { Answer, Segment } from "./answer.js";
import { linkContinuation } from "./continuation.js";
import { liveState, state } from "../state.js";

const SESSION = "tokenglass.session";
const SETTINGS = "tokenglass.settings";
const SAVE_EVERY_MS = 500;
const VERSION = 1;
/** Longest attached files, in characters, that survive a reload before they are sent. */
const MAX_DRAFT_FILES = 500_000;

/**
 * @param {() => Storage} storage
 * @param {string} key
 */
function read(storage, key) {
  try {
    const value = JSON.parse(storage().getItem(key) ?? "null");
    return value?.version === VERSION ? value : null;
  } catch {
    return null;
  }
}

/**
 * Returns false where the storage is full or forbidden.
 *
 * @param {() => Storage} storage
 * @param {string} key
 * @param {object} value
 */
function write(storage, key, value) {
  try {
    storage().setItem(key, JSON.stringify({ version: VERSION, ...value }));
    return true;
  } catch {
    return false;
  }
}

/**
 * @param {() => Storage} storage
 * @param {string} key
 */
function remove(storage, key) {
  try {
    storage().removeItem(key);
  } catch {
    // It is forbidden, so there is nothing.
  }
}

const session = () => sessionStorage;
const local = () => localStorage;

// ---- settings --------------------------------------------------------------------------------

export const savedSettings = () => read(local, SETTINGS);

export function saveSettings() {
  const { capture, mode } = liveState();
  const { settings } = state.own ?? liveState();
  const { lastPreset, truncation, cacheReuse, pace, format } = state;
  const tools = { ...state.tools, texts: [] }; // they are as large as files may be
  write(local, SETTINGS, {
    settings, lastPreset, capture, mode, truncation, cacheReuse, pace, format, tools,
  });
}

// ---- conversation ----------------------------------------------------------------------------

let timer = 0;
/**
 * What is in the composer: its text, and attached files {name, block} (attachments.js).
 *
 * @type {{text: string, files: AttachedText[]}}
 */
let draft = { text: "", files: [] };

/** Save within half a second; tokens arrive too fast to save each one. */
export function saveSoon() {
  timer ||= setTimeout(save, SAVE_EVERY_MS);
}

/**
 * @param {string} text
 * @param {AttachedText[]} files
 */
export function saveDraft(text, files) {
  const size = files.reduce((sum, { block }) => sum + block.length, 0);
  draft = { text, files: size <= MAX_DRAFT_FILES ? files.map(({ name, block }) => ({ name, block })) : [] };
  saveSoon();
}

/** What else the tab remembers: name → function that returns it. @type {Record<string, () => unknown>} */
const others = {};

/**
 * Have the results of functions stored by name, too, from the next save on.
 *
 * @param {Record<string, () => unknown>} fields
 */
export const alsoSave = (fields) => void Object.assign(others, fields);

export function save() {
  clearTimeout(timer);
  timer = 0;
  const { turns, mode } = liveState();
  const { interventions } = state.own ?? liveState();
  const { conversation } = state;
  const isWritten = write(session, SESSION, {
    turns: packTurns(turns),
    mode,
    draft,
    reach: interventions.setting,
    conversation,
    ...Object.fromEntries(Object.entries(others).map(([name, valueOf]) => [name, valueOf()])),
  });
  // What was written before would be shown after a reload in place of what the browser keeps.
  if (!isWritten) remove(session, SESSION);
}

/**
 * Return the turns of a conversation as they are stored here: answers as text.
 *
 * @param {Turn[]} turns
 */
export const packTurns = (turns) =>
  turns.map((turn) =>
    turn.role === "user" ? turn : { ...turn, answers: turn.answers.map(packAnswer) },
  );

/** @param {Answer} answer */
const packAnswer = (answer) => ({
  segments: answer.segments.map((segment) => ({
    id: segment.id,
    request: segment.request,
    text: longer(answer.segmentText(segment), segment.textBefore),
    state: segment.state,
    accepted: !segment.unanswered,
    reason: segment.reason,
    params: segment.params,
    capture: segment.capture,
    branch: segment.branch,
    counted: segment.alreadyCounted,
    model: segment.model,
    dropped: segment.dropped,
    edited: segment.edited,
  })),
});

/**
 * A text whose tokens are coming again may be incomplete.
 *
 * @param {string} a
 * @param {string} b
 */
const longer = (a, b) => (a.length < b.length ? b : a);

/**
 * @typedef {ReturnType<typeof packAnswer>} PackedAnswer
 * @typedef {UserTurn | (Omit<ModelTurn, "answers"> & {answers: PackedAnswer[]})} PackedTurn
 */

/**
 * Return the turns that `packTurns` packed.
 *
 * @param {PackedTurn[]} packed
 * @returns {Turn[]}
 */
export const unpackTurns = (packed) =>
  packed.map((turn) => (turn.role === "user" ? turn : { ...turn, answers: unpackAnswers(turn.answers) }));

/**
 * Return the stored {turns, mode, reach, conversation, refill, unsaved, left}, or null. `refill` lists
 * the segments whose events have to be requested again; `unsaved`: was something of the conversation
 * not kept yet; `left`: see `marksOfLeft` of conversations/left.js.
 */
export function restore() {
  const kept = read(session, SESSION);
  if (!kept) return null;
  if (kept.draft?.files) draft = kept.draft;
  const turns = unpackTurns(kept.turns);
  const last = turns.at(-1);
  const refill = last?.role === "model" ? refillsOf(last) : [];
  const { mode, reach, conversation = null, unsaved = false, left = [] } = kept;
  return { turns, mode, reach, conversation, refill, unsaved, left };
}

/**
 * Segments of all versions of a turn as {answer, segment, text, unfinished}, the shown one's first; a
 * branch needs its parents' before its own.
 *
 * @param {ModelTurn} turn
 */
export function refillsOf({ answers, shown }) {
  const order = new Set([...parentsOf(answers[shown]), answers[shown], ...answers]);
  return [...order].flatMap((answer) => {
    const own = answer.segments.findLastIndex(({ branch }) => branch);
    return answer.segments
      .slice(Math.max(0, own))
      .filter((segment) => segment.state !== "lost")
      .map((segment) => {
        const { textOnly: text, unfinished } = segment;
        return { answer, segment, text, unfinished };
      });
  });
}

/**
 * The answers an answer branches from, oldest first.
 *
 * @param {Answer} answer
 * @returns {Answer[]}
 */
function parentsOf({ segments }) {
  const parent = segments.findLast(({ branch }) => branch)?.parent;
  return parent ? [...parentsOf(parent), parent] : [];
}

/** @param {PackedAnswer[]} kept */
function unpackAnswers(kept) {
  const answers = kept.map(unpackAnswer);
  for (const segment of answers.flatMap(({ segments }) => segments))
    if (segment.branch) segment.parent = answers[segment.branch.of];
  return answers;
}

/** @param {PackedAnswer} packed */
function unpackAnswer({ segments }) {
  const answer = new Answer();
  for (const kept of segments) {
    const segment = new Segment(kept.id, kept.request, 0);
    Object.assign(segment, {
      reason: kept.reason,
      params: kept.params,
      capture: kept.capture,
      branch: kept.branch ?? null,
      alreadyCounted: kept.counted ?? 0,
      model: kept.model ?? null,
      dropped: kept.dropped ?? [],
      textOnly: kept.text,
      edited: kept.edited ?? false,
      textBefore: kept.text,
    });
    linkContinuation(answer, segment, answer.segment);
    segment.unfinished = kept.state !== "done" && kept.state !== "lost";
    segment.unanswered = segment.unfinished && !kept.accepted;
    segment.here = segment.unfinished;
    segment.state = segment.unfinished ? "sent" : kept.state;
    answer.segments.push(segment);
  }
  return answer;
}

export const savedDraft = () => draft;
