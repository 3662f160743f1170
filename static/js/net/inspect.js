// Questions to the server that have one answer each: inspections, token counts, tokenization.

import { send } from "./connection.js";

/**
 * Open questions: number → {resolve, reject}.
 *
 * @type {Map<number, {resolve: (answer: any) => void, reject: (error: Problem) => void}>}
 */
const pending = new Map();
let last = 0;
/** Inspections of runs: how many were sent, and how many are unanswered. */
const inspections = { asked: 0, pending: 0 };

/**
 * Send an inspection request, {kind, ids, …} as in `gpu/inspection/requests.py`, to the engine with a
 * number from 1, or to the one that the server chooses. Resolves to
 * {kind, info, arrays: {name: {shape, values}}}, values Float32Array or Uint32Array. Rejects with
 * {code, message}: the server's error, or "lost" without a connection.
 *
 * @param {Question} question
 * @param {number} [engine]
 * @returns {Promise<FrameAnswer>}
 */
export function inspect(question, engine = 0) {
  inspections.asked += 1;
  inspections.pending += 1;
  return ask("inspect", { question, ...(engine && { engine }) }).finally(() => {
    inspections.pending -= 1;
  });
}

/** Inspections so far, each of which takes engine time: {asked, pending}. */
export const questions = () => ({ ...inspections });

/**
 * Return the tokens of a text, as `Tokenized` of `app/protocol/messages.py`. `what` has `prompt`,
 * `messages` (and `continue_final`) or `text`. Rejects as `inspect` does.
 *
 * @param {Countable} what
 * @returns {Promise<ToPage.Tokenized>}
 */
export const tokenize = (what) => ask("tokenize", what);

/**
 * Return how the words of a plain text become tokens, as `Segmented` of `app/protocol/messages.py`. Rejects
 * as `inspect` does.
 *
 * @param {{text: string}} what
 * @returns {Promise<ToPage.Segmented>}
 */
export const segment = (what) => ask("segment", what);

/**
 * Return the token count of a `prompt` or of `messages`: {tokens}. Rejects as `inspect` does.
 *
 * @param {Countable} what
 * @returns {Promise<ToPage.Counted>}
 */
export const count = (what) => ask("count", what);

/**
 * @param {"inspect" | "count" | "tokenize" | "segment"} type
 * @param {object} fields
 * @returns {Promise<any>}
 */
function ask(type, fields) {
  last += 1;
  const request = last;
  return new Promise((resolve, reject) => {
    if (!send(/** @type {PageMessage} */ ({ type, request, ...fields }))) return reject(lost());
    pending.set(request, { resolve, reject });
    return undefined;
  });
}

function lost() {
  return { code: "lost", message: "The server is disconnected; try again once it is back." };
}

/**
 * Settle the question that a message with a `request` answers; false when it is unknown.
 *
 * @param {FrameAnswer | ToPage.Counted | ToPage.Tokenized | ToPage.Segmented | ToPage.Error} message
 */
export function resolveRequest(message) {
  const question = pending.get(message.request ?? 0);
  if (!question) return false;
  pending.delete(message.request ?? 0);
  if (message.type === "error") question.reject(message);
  else question.resolve(message);
  return true;
}

/** Reject all open questions after a disconnect. */
export function rejectAll() {
  const open = [...pending.values()];
  pending.clear();
  for (const { reject } of open) reject(lost());
}

/**
 * @typedef {{question: any, how: (question: any) => Promise<unknown>, resolve: (answer: any) => void,
 *   reject: (error: unknown) => void}} Waiting
 */

/**
 * key → the question queued behind the pending one, or null.
 *
 * @type {Map<string, Waiting | null>}
 */
const waiting = new Map();

/**
 * Ask a question of which only the newest matters, as under a slider or the pointer. Per `key` at
 * most one question is pending; the newest waits for it, and questions in between are dropped:
 * their promises never settle. `how` sends it: `inspect` or `tokenize`.
 *
 * @template Q, A
 * @param {string} key
 * @param {Q} question
 * @param {(question: Q) => Promise<A>} how
 * @returns {Promise<A>}
 */
export function latest(key, question, how) {
  return new Promise((resolve, reject) => {
    const free = !waiting.has(key);
    waiting.set(key, { question, how, resolve, reject });
    if (free) work(key);
  });
}

/** @param {string} key */
async function work(key) {
  for (;;) {
    const { question, how, resolve, reject } = /** @type {Waiting} */ (waiting.get(key));
    waiting.set(key, null);
    const settled = await how(question).then(
      (answer) => () => resolve(answer),
      (error) => () => reject(error),
    );
    if (waiting.get(key) === null) {
      waiting.delete(key);
      settled();
      return;
    }
  }
}
