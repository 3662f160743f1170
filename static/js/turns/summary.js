// Summaries: a chat that has outgrown the context goes on with a summary that the model wrote in
// place of its oldest turns. No DOM access in this module.
//
// A summary is a turn of the model whose field `summary` says what it stands for:
//
//   covers  how many of the person's messages, counted from the first, with the answers to them
//   edited  {version, text}: what a person put in place of the text of that version; absent: nothing
//
// It is written as the continuation of the chat itself, so the turns that it is made of are in the
// prefix cache already.

import { plural } from "../ui/format.js";
import { shownAnswer } from "../state.js";
import { answerMessages } from "./tool-calls.js";

/** What the person says in place of the covered turns; the summary is the answer. */
export const ASKED = "Summarise our conversation so far.";
/** Why a run ended whose text is no whole summary. */
const BROKEN = new Set(["cancelled", "error"]);
const WORDS_PER_TOKEN = 0.6;

/** Ask for a summary that fits in `nTokens` tokens. @param {number} nTokens */
export function instruction(nTokens) {
  const words = Math.max(10, Math.floor((nTokens * WORDS_PER_TOKEN) / 10) * 10);
  return (
    `Summarise our conversation so far in at most ${words} words, so that we can go on from the ` +
    "summary alone. Keep what I asked for, what was decided, names, numbers and what is still " +
    "open. Write only the summary, in the language of the conversation."
  );
}

/**
 * What a person put in place of the shown version of a summary, or null.
 *
 * @param {ModelTurn} turn
 */
export function editOf({ summary, shown }) {
  const { version, text = null } = summary?.edited ?? {};
  return version === shown ? text : null;
}

/** Text of a summary, as it is sent. @param {ModelTurn} turn */
export const summaryText = (turn) => (editOf(turn) ?? shownAnswer(turn)?.text ?? "").trim();

/**
 * Is this turn a whole summary? One that is being written, was stopped or failed is not.
 *
 * @param {Turn} turn
 * @returns {turn is ModelTurn & {summary: ReplayFile.Summary}}
 */
export function isWhole(turn) {
  if (!turn.summary) return false;
  if (editOf(turn) !== null) return true;
  const segment = shownAnswer(turn)?.segment;
  const ended = segment?.state === "lost" || (segment?.reason && !BROKEN.has(segment.reason));
  return !!ended && summaryText(turn) !== "";
}

/**
 * The summary that is sent in place of the oldest of these turns, or null: the newest whole one.
 *
 * @param {Turn[]} turns
 */
export const actingSummary = (turns) => turns.findLast(isWhole) ?? null;

/**
 * Index of the turn with the person's message number `n`, counted from 0; behind the last: the end.
 *
 * @param {Turn[]} turns
 * @param {number} n
 */
export function indexOfMessage(turns, n) {
  const asked = turns.flatMap(({ role }, i) => (role === "user" ? [i] : []));
  return asked[n] ?? turns.length;
}

/** How many of the first turns a summary stands for. @param {Turn[]} turns */
export function nCovered(turns) {
  const summary = actingSummary(turns);
  return summary ? indexOfMessage(turns, summary.summary.covers) : 0;
}

/**
 * Return turns as the messages that are sent. `system`: the system prompt, or "".
 *
 * @param {Turn[]} turns
 * @param {string} system
 */
export function messagesOf(turns, system) {
  const acting = actingSummary(turns);
  return acting
    ? messagesWith(turns, system, acting.summary.covers, summaryText(acting))
    : messagesWith(turns, system);
}

/** @type {(content: string) => FromPage.Message} */
const systemMessage = (content) => ({ role: "system", content });

/**
 * Return turns as messages, with the summary `text` in place of those it covers.
 *
 * @param {Turn[]} turns
 * @param {string} system
 * @param {number} [covers]
 * @param {string} [text]
 * @returns {FromPage.Message[]}
 */
export function messagesWith(turns, system, covers = 0, text = "") {
  return [
    ...(system ? [systemMessage(system)] : []),
    ...(covers ? standIn(text) : []),
    ...said(turns.slice(indexOfMessage(turns, covers))),
  ];
}

/**
 * A summary as messages: an answer, because templates want the person to speak first.
 *
 * @param {string} text
 * @returns {FromPage.Message[]}
 */
const standIn = (text) => [
  { role: "user", content: ASKED },
  { role: "assistant", content: text },
];

/**
 * @param {Turn[]} turns
 * @returns {FromPage.Message[]}
 */
const said = (turns) =>
  turns
    .filter(({ mode, summary }) => mode !== "completion" && !summary)
    .flatMap((turn) =>
      turn.role === "user" ? [{ role: "user", content: turn.text }] : answerMessages(turn),
    );

/**
 * Return the summary in the messages of a request, or "".
 *
 * @param {Asked | null | undefined} request
 */
export function summaryIn(request) {
  const messages = request?.messages ?? [];
  const at = messages.findIndex(({ role }) => role === "user");
  const isStandIn = messages[at]?.content === ASKED && messages[at + 1]?.role === "assistant";
  return isStandIn ? messages[at + 1].content : "";
}

/**
 * Settings that the runs of a summary have in place of the page's: those of its first run.
 *
 * @param {ModelTurn} turn
 */
export function ownSettings({ summary, answers }) {
  const params = summary && answers[0].segments[0]?.request.params;
  return params ? { max_tokens: params.max_tokens, stop: params.stop } : {};
}

/** "the oldest turn", "the 3 oldest turns". @param {number} n */
export const oldestTurns = (n) => (n === 1 ? "the oldest turn" : `the ${plural(n, "oldest turn")}`);
