// How many turns a summary has to cover so that the next message fits. No DOM access in this module.
//
// The room that is left for an answer, a quarter of the context, is that of app/prompt/truncation.py.
// A summary leaves another quarter free, so that the prompts after it begin alike for a while and the
// prefix cache finds them.

import { count, plural } from "../ui/format.js";
import { actingSummary, indexOfMessage, instruction, messagesWith, summaryText } from "../turns/summary.js";

const SHARES = 4;
/** A summary takes one part in so many of the context, and this many tokens at most. */
const SUMMARY_SHARES = 8;
const MAX_SUMMARY = 1024;

/** Why no summary can make room; the message is for people. */
export class NoRoom extends Error {}

/**
 * @typedef {{messages: FromPage.Message[], covers: number, maxTokens: number, slides: boolean}}
 *   SummaryPlan
 */

/**
 * Return the run that writes a summary before `text` is sent: {messages, covers, maxTokens, slides};
 * null if there is room. Throws NoRoom, and what `tokensOf` throws.
 *
 *   turns, system  the conversation
 *   limits         {context, maxTokens}: of the engine, and of the answer to `text`
 *   tokensOf       resolves to the number of tokens of messages
 *
 * Turns that do not fit into one request for a summary are summarised in pieces: the plan covers as
 * many as do, and is asked for again after it. A single turn that does not fit `slides`: its oldest
 * tokens leave the context while it is read.
 *
 * @param {{turns: Turn[], system: string, text: string}} chat
 * @param {{context: number, maxTokens: number}} limits
 * @param {(messages: FromPage.Message[]) => Promise<number>} tokensOf
 * @returns {Promise<SummaryPlan | null>}
 */
export async function planSummary({ turns, system, text }, { context, maxTokens }, tokensOf) {
  /** @type {FromPage.Message} */
  const asked = { role: "user", content: text };
  const acting = actingSummary(turns);
  /** @type {[number, string]} */
  const before = acting ? [acting.summary.covers, summaryText(acting)] : [0, ""];
  const nSummary = Math.max(1, Math.min(MAX_SUMMARY, Math.floor(context / SUMMARY_SHARES)));
  const step = Math.max(1, Math.floor(context / SHARES));
  const room = context - Math.max(1, Math.min(maxTokens, step));
  const last = turns.filter(({ role }) => role === "user").length;
  const first = before[0] + 1;

  /** @param {number} covers */
  const rest = async (covers) =>
    nSummary + (await tokensOf([...messagesWith(turns, system, covers, "…"), asked]));
  /** @type {(covers: number) => FromPage.Message[]} */
  const request = (covers) => [
    ...messagesWith(turns.slice(0, indexOfMessage(turns, covers)), system, ...before),
    { role: "user", content: instruction(nSummary) },
  ];
  /** @param {number} covers */
  const isReadable = async (covers) => nSummary + (await tokensOf(request(covers))) <= context;

  if (first > last) return null;
  if ((await tokensOf([...messagesWith(turns, system, ...before), asked])) <= room) return null;
  const least = await rest(last);
  if (least >= context)
    throw new NoRoom(
      `your message, a summary of ${plural(nSummary, "token")} and the system prompt are ` +
        `${plural(least, "token")} together, but the context has ${count(context)}`,
    );
  const needed = await firstOf(first, last, async (n) => (await rest(n)) <= room - step);
  const covers = await firstOf(first, needed, async (n) => !(await isReadable(n + 1)));
  const slides = !(await isReadable(covers));
  return { messages: request(covers), covers, maxTokens: nSummary, slides };
}

/**
 * Return the first number from `low` on for which `isTrue` resolves to true, at most `high`.
 *
 * @param {number} low
 * @param {number} high
 * @param {(n: number) => boolean | Promise<boolean>} isTrue
 */
async function firstOf(low, high, isTrue) {
  let [from, to] = [low, high];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (await isTrue(middle)) to = middle;
    else from = middle + 1;
  }
  return from;
}
