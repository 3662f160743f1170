// Cache of engine answers that stay valid: inspecting a token of a run always gives the same
// numbers.

import { inspect, latest } from "../../net/inspect.js";
import { state } from "../../state.js";
import { Missing } from "./context.js";

/** Allowance for the growth of a request when encoded as JSON. */
const JSON_GROWTH = 1.02;

/** All caches: each instrument has its own. @type {AnswerCache[]} */
const all = [];

/** Bytes used by all caches, and their limit. */
export const usage = () => ({
  bytes: all.reduce((sum, { bytes }) => sum + bytes, 0),
  mostBytes: all.reduce((sum, { mostBytes }) => sum + mostBytes, 0),
});

/** Answers by key within a limit of bytes; the least recently used are dropped first. */
export class AnswerCache {
  /** @type {Map<string, FrameAnswer>} */
  #answers = new Map();
  #bytes = 0;

  /** @param {number} mostBytes */
  constructor(mostBytes) {
    this.mostBytes = mostBytes;
    all.push(this);
  }

  get bytes() {
    return this.#bytes;
  }

  /** @param {string} key */
  get(key) {
    const answer = this.#answers.get(key);
    if (!answer) return null;
    this.#answers.delete(key);
    this.#answers.set(key, answer);
    return answer;
  }

  /** @param {string} key @param {FrameAnswer} answer */
  set(key, answer) {
    this.#drop(key);
    this.#answers.set(key, answer);
    this.#bytes += bytesOf(answer);
    for (const oldest of this.#answers.keys()) {
      if (this.#bytes <= this.mostBytes || oldest === key) break;
      this.#drop(oldest);
    }
    return answer;
  }

  /** @param {string} key */
  #drop(key) {
    const answer = this.#answers.get(key);
    if (!answer) return;
    this.#answers.delete(key);
    this.#bytes -= bytesOf(answer);
  }
}

/** All arrays of an answer are views on one buffer. @param {FrameAnswer} answer */
const bytesOf = ({ arrays }) => Object.values(arrays)[0]?.values.buffer.byteLength ?? 0;

/** Inspecting the newest token of a run interrupts it, for at most this share of the time. */
const SHARE = 0.2;
/** Minimum pause after each such answer. */
const MIN_REST_MS = 120;
let restsUntil = 0;

/**
 * Ask a question of which only the newest matters; see `latest`.
 *
 * @param {string} key
 * @param {Question} question
 */
export const askLatest = (key, question) => checked(question, () => latest(key, question, inspect));

/**
 * Ask the same about the newest token of a run that may be active.
 *
 * @param {string} key
 * @param {Question} question
 * @param {{running: boolean}} segment
 * @param {AbortSignal} signal
 */
export async function askNewest(key, question, { running }, signal) {
  const rest = running ? restsUntil - performance.now() : 0;
  if (rest > 0) await pause(rest, signal);
  const answer = await askLatest(key, question);
  const took = answer.info.ms ?? 0;
  restsUntil = performance.now() + Math.max(MIN_REST_MS, took * (1 / SHARE - 1));
  return answer;
}

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
const pause = (ms, signal) =>
  new Promise((resolve) => {
    setTimeout(resolve, ms);
    signal.addEventListener("abort", () => resolve(), { once: true });
  });

/** Ask a question whose answer is always needed. @param {Question} question */
export const askOnce = (question) => checked(question, () => inspect(question));

/** @param {Question} question @param {() => Promise<FrameAnswer>} ask */
function checked(question, ask) {
  const most = state.hello?.limits.message_bytes ?? Infinity;
  if (JSON.stringify(question).length * JSON_GROWTH > most)
    throw new Missing("This run is too long for one request to the server.");
  return ask();
}
