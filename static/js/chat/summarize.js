// "When context is full: summarise": the model writes a summary of the oldest turns before a message
// is sent that would not fit. The message waits in the composer meanwhile, so that it is there
// whatever happens.

import { keepSoon } from "../conversations/keeper.js";
import { count } from "../net/inspect.js";
import { changed, deleteTurn, lastTurn, on, ready, setState, shownAnswer, state } from "../state.js";
import { sentence } from "../ui/format.js";
import { showAnswer, view } from "../view.js";
import { whyTooLong } from "./generate-message.js";
import { save } from "../turns/persist.js";
import { startSummary, systemPrompt } from "./session.js";
import { isWhole } from "../turns/summary.js";
import { NoRoom, planSummary } from "./summary-plan.js";

/**
 * The message that waits for room, or null.
 *
 *   text, send  what is sent, and how
 *   turns       those of its conversation
 *   summary     the turn that is being written; null while tokens are counted
 *
 * @typedef {{text: string, send: () => void, turns: Turn[], summary: ModelTurn | null}} Waiting
 * @type {Waiting | null}
 */
let waiting = null;

export function setUpSummarize() {
  on("turns tokens connection", goOn);
}

/** Is a message waiting for room? */
export const isMakingRoom = () => waiting !== null;

/** The summary that a message waits for, or null. */
export const awaitedSummary = () => waiting?.summary ?? null;

/** Does a message of the page's mode wait until the conversation has room for it? */
export const makesRoom = () => state.truncation === "summarize" && state.mode === "chat";

/**
 * Send a message once the conversation has room for it. `send` sends it at once.
 *
 * @param {string} text
 * @param {() => void} send
 */
export function sendWithRoom(text, send) {
  if (waiting) return;
  waiting = { text, send, turns: state.turns, summary: null };
  setState({ problem: null });
  advance();
}

/** Send the message that waits, or have the next summary written. */
async function advance() {
  const mine = waiting;
  if (!mine) return;
  changed("turns");
  try {
    const plan = await planOf(mine);
    if (waiting !== mine) return;
    const goesOn = mayGoOn();
    if (plan && goesOn) mine.summary = /** @type {ModelTurn | null} */ (startSummary(plan));
    if (mine.summary) return;
    giveUp();
    if (!plan && goesOn) mine.send();
  } catch (error) {
    if (waiting === mine) fail(/** @type {Problem} */ (error));
  }
}

/** @param {Waiting} waiting */
function planOf({ text }) {
  const { turns, settings, hello } = state;
  if (!hello) return null; // the server says then whether it is too long
  const limits = { context: hello.limits.context, maxTokens: settings.max_tokens };
  return planSummary({ turns, system: systemPrompt(), text }, limits, tokensOf);
}

/**
 * Messages that are longer than the server accepts are longer than any context.
 *
 * @param {FromPage.Message[]} messages
 */
async function tokensOf(messages) {
  if (whyTooLong({ type: "count", request: 0, messages })) return Infinity;
  return (await count({ messages })).tokens;
}

const mayGoOn = () =>
  ready() && !state.active && state.turns === waiting?.turns && state.mode === "chat";

/** Forget the message that waits; it stays in the composer. */
function giveUp() {
  waiting = null;
  changed("turns");
}

/**
 * `error`: a NoRoom, or {code, message}; what else was thrown is thrown on.
 *
 * @param {Problem} error
 */
function fail(error) {
  giveUp();
  if (!(error instanceof NoRoom) && !error.code) throw error;
  setState({ problem: { code: "summary", message: `${sentence(error.message)} Your message is kept.` } });
}

/** Go on once the summary has ended. Also called when it ends while the page is not drawn. */
export function goOn() {
  if (!waiting?.summary) return;
  const { summary, turns } = waiting;
  if (state.replay || state.turns !== turns || lastTurn() !== summary) return void giveUp();
  const segment = shownAnswer(summary)?.segment;
  if (!segment || segment.running || state.active) return;
  waiting.summary = null;
  if (isWhole(summary)) advance();
  else fail({ code: "summary", message: whyNotWhole(segment) });
}

/** @param {Segment} segment */
const whyNotWhole = ({ reason, message }) =>
  message || (reason === "cancelled" ? "it was stopped" : "the model wrote nothing");

// ---- changing a summary ------------------------------------------------------------------------

/**
 * Put another text in place of a summary; null brings the model's back.
 *
 * @param {ModelTurn} turn
 * @param {string | null} text
 */
export function editSummary(turn, text) {
  if (!turn.summary) return;
  const { covers } = turn.summary;
  turn.summary = { covers, ...(text !== null && { edited: { version: turn.shown, text } }) };
  keep();
}

/** Remove a summary: the turns that it covers are sent themselves again. @param {ModelTurn} turn */
export function removeSummary(turn) {
  deleteTurn(turn);
  if (view.answer && turn.answers.includes(view.answer)) showAnswer(shownAnswer(lastTurn()));
  keep();
}

function keep() {
  save();
  keepSoon();
  changed("turns", "tokens");
}
