// Conversations that were left while they were written. Their runs go on; each waits here, with all
// its tokens, until it is opened again.

import { alsoSave, packTurns, save, saveSoon } from "../turns/persist.js";
import { send } from "../net/connection.js";
import { follow, unfollow } from "../net/followed-runs.js";
import { newId } from "../net/new-id.js";
import { byId } from "../ui/dom.js";
import { changed, hasEngine, setState, state } from "../state.js";
import { headingOf, keepLeft } from "./keeper.js";

/**
 * A conversation that is not on the page.
 *
 *   id        that of the conversation
 *   phase     "running"; "finished" or "failed" until it is opened
 *   problem   why its run was refused, {code, message, inTurns: true}, or null
 *   conversation, turns   as in state.js; null: they are in storage only, as after a reload
 *   answer    the answer that is written, or null
 *   isStored  has storage its newest message, with the server's answer that it was accepted?
 *   unstored  {conversation, turns} of persist.js until they are taken up after a reload, or null
 *
 * @typedef {{id: string, phase: "running" | "finished" | "failed", problem: Problem | null,
 *   conversation: Conversation | null, turns: Turn[] | null, answer: Answer | null,
 *   isStored: boolean,
 *   unstored: {conversation: Conversation, turns: import("../turns/persist.js").PackedTurn[]} | null,
 * }} Left
 * @typedef {Pick<Left, "id" | "phase" | "problem" | "unstored">} LeftMark
 */

/**
 * @returns {Left | null}
 *
 * @param {string} id
 */
export const leftOf = (id) => state.left.find((one) => one.id === id) ?? null;

/** Let the run of the page's conversation go on while another conversation is on the page. */
export function leaveRunning() {
  const { conversation, turns, active } = state;
  conversation.id ??= newId();
  keepLeft(putLeft({ conversation, turns, answer: active, isStored: false }), true);
}

/**
 * The same while its tokens are on their way after a reload: they are asked for again.
 *
 * @param {(one: Left) => Promise<Partial<Left> | null>} readLeft
 */
export function leaveRefilling(readLeft) {
  const { conversation, turns } = state;
  conversation.id ??= newId();
  const unstored = { conversation, turns: packTurns(turns) };
  return restoreLeft([{ id: conversation.id, phase: "running", problem: null, unstored }], readLeft);
}

/**
 * Follow the run of a conversation that is not on the page. Returns its `Left`.
 *
 * @param {Pick<Left, "conversation" | "turns" | "answer" | "isStored">} kept
 */
function putLeft(kept) {
  const id = kept.conversation?.id ?? "";
  /** @type {Left} */
  const one = { id, phase: "running", problem: null, unstored: null, ...kept };
  setState({ left: [...state.left.filter((other) => other.id !== id), one] });
  if (one.answer) follow(one.answer, followerOf(one));
  return one;
}

/** Ask for the events of a run that are newer than those in storage. @param {Left} left */
function resumeLeft({ answer }) {
  const segment = answer?.segment;
  if (segment && hasEngine()) send({ type: "resume", id: segment.id, after: segment.seq });
}

/** Take a conversation from those that were left, to open or to delete it. @param {string} id */
export function takeLeft(id) {
  const one = leftOf(id);
  if (!one) return null;
  const segment = runningOf(one);
  if (segment) unfollow(segment.id);
  setState({ left: state.left.filter((other) => other !== one) });
  return one;
}

/** Stop the run of a conversation that was left; its text is kept. @param {string} id */
export function stopLeft(id) {
  const one = leftOf(id);
  const segment = runningOf(one);
  if (segment) send({ type: "stop", id: segment.id });
}

/** Runs of conversations that were left, whose measurements are kept. */
export const leftSegments = () =>
  state.left.flatMap(({ turns }) =>
    (turns ?? []).flatMap(({ answers = [] }) => answers.flatMap(({ segments }) => segments)),
  );

/** The segment that is being written, or null. @param {Left | null} one */
const runningOf = (one) => (one?.phase === "running" && one.answer?.segment) || null;

/** @param {{conversation: Conversation | null, turns: Turn[] | null}} one */
export const titleOf = ({ conversation, turns }) => conversation?.title || headingOf(turns ?? []);

/** @param {Left} one */
const followerOf = (one) => ({
  name: () => `“${titleOf(one)}”`,

  /**
   * @param {Segment} segment
   * @param {RunEvent | null} event
   */
  onEvent(segment, event) {
    if (!segment.running) end(one, segment.reason === "error" ? "failed" : "finished");
    keepLeft(one, !segment.running || event?.type === "accepted");
  },

  /**
   * @param {Segment} segment
   * @param {Problem} problem
   */
  onRefused(segment, { code, message }) {
    withdraw(one.answer, segment);
    one.problem = { code, message, inTurns: true };
    end(one, "failed");
    keepLeft(one, true);
  },
});

/**
 * The prompt stays in the conversation; a refused continuation leaves nothing.
 *
 * @param {Answer | null} answer
 * @param {Segment} segment
 */
function withdraw(answer, segment) {
  if (!answer) return;
  if (answer.segments.length > 1 && !segment.branch) answer.segments.pop();
  else segment.textOnly = "";
  answer.edition += 1;
}

/**
 * @param {Left} one
 * @param {"finished" | "failed"} phase
 */
function end(one, phase) {
  one.phase = phase;
  const message = (one.problem ?? one.answer?.segment)?.message;
  const said = phase === "failed" ? ` has failed: ${message}` : " is finished";
  byId("live-status").textContent = `“${titleOf(one)}”${said}`;
  saveSoon();
  changed("conversations", "tokens");
}

// ---- after a reload ----------------------------------------------------------------------------

/** What a tab remembers of each of them: {id, phase, problem, unstored}. */
const marksOfLeft = () =>
  state.left.map((one) => ({
    id: one.id,
    phase: one.phase,
    problem: one.problem,
    unstored: one.isStored ? null : unstoredOf(one),
  }));
alsoSave({ left: marksOfLeft });

/** @param {Left} left */
const unstoredOf = ({ conversation, turns, unstored }) =>
  turns && conversation ? { conversation, turns: packTurns(turns) } : unstored;

/**
 * Take up what the tab remembered. `readLeft(one)` resolves to {conversation, turns, answer, isStored}
 * of a `Left`, or null.
 *
 * @param {LeftMark[]} marks
 * @param {(one: Left) => Promise<Partial<Left> | null>} readLeft
 */
export async function restoreLeft(marks, readLeft) {
  const bare = { conversation: null, turns: null, answer: null, unstored: null };
  /** @type {Left[]} */
  const found = marks.map((mark) => ({ ...bare, ...mark, isStored: !mark.unstored }));
  setState({ left: [...state.left, ...found] });
  for (const one of found.filter(({ phase, unstored }) => phase === "running" || unstored)) {
    const kept = await readLeft(one);
    if (!state.left.includes(one)) continue; // it was opened meanwhile
    if (kept?.answer?.running) resumeLeft(putLeft(/** @type {Left} */ (kept)));
    else if (kept && one.unstored) Object.assign(one, kept, { unstored: null });
    else if (kept) one.phase = kept.answer?.segment?.reason === "error" ? "failed" : "finished";
    else takeLeft(one.id);
  }
  save();
  changed("conversations");
}
