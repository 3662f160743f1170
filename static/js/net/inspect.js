// Questions to the server with one answer each: what did this token look at, how is this cut.

import { send } from "./line.js";

/** Asked and not answered: number → {resolve, reject}. */
const underWay = new Map();
let last = 0;
/** Questions about runs: how many were asked, and how many of them have no answer yet. */
const inspections = { asked: 0, underWay: 0 };

/**
 * Ask about a run. `question` is one of `gpu/inspection.py`, as {kind, ids, …}. Resolves to
 * {kind, info, arrays: {name: {shape, values}}}, values Float32Array or Uint32Array. Rejects with
 * {code, message}: those of the server, and "lost" when the line is down or breaks.
 */
export function inspect(question) {
  inspections.asked += 1;
  inspections.underWay += 1;
  return ask("inspect", { question }).finally(() => {
    inspections.underWay -= 1;
  });
}

/** Questions about runs, each of which takes time of the engine: {asked, underWay}. */
export const questions = () => ({ ...inspections });

/**
 * The tokens of a text, as `Tokenized` of `app/protocol.py`. `what` has `prompt`, `messages` (and
 * `continue_final`) or `text`. Rejects as `inspect` does.
 */
export const tokenize = (what) => ask("tokenize", what);

/** How many tokens `what` has, a `prompt` or `messages`: {tokens}. Rejects as `inspect` does. */
export const count = (what) => ask("count", what);

function ask(type, fields) {
  last += 1;
  const request = last;
  return new Promise((resolve, reject) => {
    if (!send({ type, request, ...fields })) return reject(lost());
    underWay.set(request, { resolve, reject });
    return undefined;
  });
}

function lost() {
  return { code: "lost", message: "The line to the server is down; ask again when it is back." };
}

/** Hand a message with a `request` to who asked; false when nobody here did. */
export function settle(message) {
  const asked = underWay.get(message.request);
  if (!asked) return false;
  underWay.delete(message.request);
  if (message.type === "error") asked.reject(message);
  else asked.resolve(message);
  return true;
}

/** The line broke: its answers will not come. */
export function loseAll() {
  const asked = [...underWay.values()];
  underWay.clear();
  for (const { reject } of asked) reject(lost());
}

/** key → what waits for the answer under way: {question, resolve, reject}, or null. */
const waiting = new Map();

/**
 * Ask what only the newest answer of matters to, as under a slider or the pointer. Of each `key`
 * one question is on the line at most, and the newest waits for its answer. Only the newest
 * settles; the promises of older ones never do. `how` asks: `inspect`, or `tokenize`.
 */
export function latest(key, question, how = inspect) {
  return new Promise((resolve, reject) => {
    const free = !waiting.has(key);
    waiting.set(key, { question, how, resolve, reject });
    if (free) work(key);
  });
}

async function work(key) {
  for (;;) {
    const { question, how, resolve, reject } = waiting.get(key);
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
