// What survives a reload: the conversation (for this tab) and the settings (for this browser).
//
// The tokens of the last answer and its versions are not stored; the server sends them again. Their
// text is, for the case that the server no longer has them.

import { Answer, Segment } from "./answer.js";
import { goOnAfter } from "./continuing.js";
import { live } from "./state.js";

const SESSION = "tokenglass.session";
const SETTINGS = "tokenglass.settings";
const SAVE_EVERY_MS = 500;
const VERSION = 1;

function read(storage, key) {
  try {
    const value = JSON.parse(storage().getItem(key));
    return value?.version === VERSION ? value : null;
  } catch {
    return null;
  }
}

function write(storage, key, value) {
  try {
    storage().setItem(key, JSON.stringify({ version: VERSION, ...value }));
  } catch {
    // Full or forbidden: the page works on, it only will not survive a reload.
  }
}

const session = () => sessionStorage;
const local = () => localStorage;

// ---- settings --------------------------------------------------------------------------------

export const savedSettings = () => read(local, SETTINGS);

export function saveSettings() {
  const { settings, capture, mode } = live();
  write(local, SETTINGS, { settings, capture, mode });
}

// ---- conversation ----------------------------------------------------------------------------

let timer = 0;
let draft = "";

/** Save within half a second; tokens come faster than storage should be written. */
export function saveSoon() {
  timer ||= setTimeout(save, SAVE_EVERY_MS);
}

export function saveDraft(text) {
  draft = text;
  saveSoon();
}

export function save() {
  clearTimeout(timer);
  timer = 0;
  const { turns, mode, reach } = live();
  const packed = turns.map((turn) =>
    turn.role === "user" ? turn : { ...turn, answers: turn.answers.map(packAnswer) },
  );
  write(session, SESSION, { turns: packed, mode, draft, reach: reach.setting });
}

const packAnswer = (answer) => ({
  segments: answer.segments.map((segment) => ({
    id: segment.id,
    request: segment.request,
    text: answer.segmentText(segment),
    state: segment.state,
    accepted: segment.accepted,
    reason: segment.reason,
    params: segment.params,
    capture: segment.capture,
    branch: segment.branch,
    counted: segment.counted,
    model: segment.model,
  })),
});

/** {turns, mode, draft, reach, refill}, or null when nothing was kept. `refill`: segments to ask for again. */
export function restore() {
  const kept = read(session, SESSION);
  if (!kept) return null;
  draft = kept.draft ?? "";
  const turns = kept.turns.map((turn) =>
    turn.role === "user" ? turn : { ...turn, answers: unpackAnswers(turn.answers) },
  );
  const last = turns.at(-1);
  const refill = last?.role === "model" ? refillsOf(last) : [];
  return { turns, mode: kept.mode, draft, reach: kept.reach, refill };
}

/** All versions' segments, the shown one's first; those a branch begins with are its parent's. */
function refillsOf({ answers, shown }) {
  const order = new Set([...parentsOf(answers[shown]), answers[shown], ...answers]);
  return [...order].flatMap((answer) => {
    const own = answer.segments.findLastIndex(({ branch }) => branch);
    return answer.segments
      .slice(Math.max(0, own))
      .filter((segment) => segment.state !== "lost")
      .map((segment) => ({ answer, segment, text: segment.plain, unfinished: segment.unfinished }));
  });
}

/** What an answer is a branch of, the oldest first. */
function parentsOf({ segments }) {
  const parent = segments.findLast(({ branch }) => branch)?.parent;
  return parent ? [...parentsOf(parent), parent] : [];
}

function unpackAnswers(kept) {
  const answers = kept.map(unpackAnswer);
  for (const segment of answers.flatMap(({ segments }) => segments))
    if (segment.branch) segment.parent = answers[segment.branch.of];
  return answers;
}

function unpackAnswer({ segments }) {
  const answer = new Answer();
  for (const kept of segments) {
    const segment = new Segment(kept.id, kept.request, 0);
    Object.assign(segment, {
      reason: kept.reason,
      params: kept.params,
      capture: kept.capture,
      branch: kept.branch ?? null,
      counted: kept.counted ?? 0,
      model: kept.model ?? null,
      plain: kept.text,
    });
    goOnAfter(answer, segment, answer.segment);
    segment.unfinished = kept.state !== "done" && kept.state !== "lost";
    segment.state = kept.state === "lost" ? "lost" : "done";
    answer.segments.push(segment);
  }
  return answer;
}

export const savedDraft = () => draft;
