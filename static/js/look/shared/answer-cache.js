// Answers that were given once and stay true: a token of a run gives the same numbers every time.

import { inspect, latest } from "../inspect.js";
import { state } from "../state.js";
import { Missing } from "./context.js";

/** A question may grow by this much when it is written as JSON. */
const JSON_GROWTH = 1.02;

/** All there are: each instrument has its own. */
const all = [];

/** How many bytes of answers are kept, and how many may be. */
export const extent = () => ({
  bytes: all.reduce((sum, { bytes }) => sum + bytes, 0),
  mostBytes: all.reduce((sum, { mostBytes }) => sum + mostBytes, 0),
});

/** Answers by key, within a bound of bytes: those not used for longest go first. */
export class Kept {
  #answers = new Map();
  #bytes = 0;

  constructor(mostBytes) {
    this.mostBytes = mostBytes;
    all.push(this);
  }

  get bytes() {
    return this.#bytes;
  }

  get(key) {
    const answer = this.#answers.get(key);
    if (!answer) return null;
    this.#answers.delete(key);
    this.#answers.set(key, answer);
    return answer;
  }

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

  #drop(key) {
    const answer = this.#answers.get(key);
    if (!answer) return;
    this.#answers.delete(key);
    this.#bytes -= bytesOf(answer);
  }
}

/** All arrays of an answer are views on one frame. */
const bytesOf = ({ arrays }) => Object.values(arrays)[0]?.values.buffer.byteLength ?? 0;

/** Questions about a run's newest token take the engine from the run: at most this share of it, */
const SHARE = 0.2;
/** and after each answer nothing is asked for this long, however quick it was. */
const LEAST_REST_MS = 120;
let restsUntil = 0;

/** Ask under `key` what only the newest answer of matters to: see `latest`. */
export const askLatest = (key, question) => checked(question, () => latest(key, question));

/** The same about the newest token of a run that may still write. */
export async function askNewest(key, question, { running }, signal) {
  const rest = running ? restsUntil - performance.now() : 0;
  if (rest > 0) await pause(rest, signal);
  const answer = await askLatest(key, question);
  const took = answer.info.ms ?? 0;
  restsUntil = performance.now() + Math.max(LEAST_REST_MS, took * (1 / SHARE - 1));
  return answer;
}

const pause = (ms, signal) =>
  new Promise((resolve) => {
    setTimeout(resolve, ms);
    signal.addEventListener("abort", resolve, { once: true });
  });

/** Ask what every answer of matters to. */
export const askOnce = (question) => checked(question, () => inspect(question));

function checked(question, ask) {
  const { message_bytes: most } = state.hello.limits;
  if (JSON.stringify(question).length * JSON_GROWTH > most)
    throw new Missing("This run is longer than a question to the server may be.");
  return ask();
}
