// Runs of Lab: prompts as token ids, outside the conversation, one after another or together.

import { beginSegment } from "../../chat/generate-message.js";
import { send } from "../../net/connection.js";
import { follow, unfollow } from "../../net/followed-runs.js";
import { tokenize } from "../../net/inspect.js";
import { newId } from "../../net/new-id.js";
import { Answer } from "../../turns/answer.js";

/** Text that prompts are made of, repeated as often as needed. */
const TEXT =
  "The keeper of the lighthouse climbed the stairs every evening, counted the steps aloud, and wrote " +
  "down how many ships had passed, what the wind had said, and which of the gulls had come back. ";
/** Step between the first tokens of prompts; a prime, so that they repeat late. */
const STEP = 7919;

export const STOPPED = { code: "stopped", message: "Stopped." };

/** Ids of `TEXT`, and the model whose tokenizer made them. @type {{model: string, ids: number[]}} */
let text = { model: "", ids: [] };
/** Number of prompts made so far; each starts with a different token. */
let made = 0;
/** Runs that are not over yet. @type {Map<string, (error: Problem) => void>} */
const open = new Map();
let isStopped = false;

/** Stop all runs, and start no more. */
export function stopBench() {
  isStopped = true;
  for (const [id, reject] of open) {
    send({ type: "stop", id });
    reject(STOPPED);
  }
}

/**
 * Return a bench for an experiment, whose rows go to `add`.
 *
 * @param {ToPage.Hello} hello
 * @param {(row: LabRow) => void} add
 * @returns {Promise<Bench>}
 */
export async function openBench(hello, add) {
  isStopped = false;
  if (text.model !== hello.model.name) {
    const { tokens } = await tokenize({ text: TEXT });
    text = { model: hello.model.name, ids: tokens.map(({ id }) => id) };
  }
  return { hello, add, run, prompt: (n) => prompt(n, hello.model.vocab_size) };
}

/**
 * Ids of a prompt of `n` tokens. Its first token differs from that of the others, so that the engine
 * finds nothing of it in the prefix cache.
 *
 * @param {number} n
 * @param {number} vocabulary
 */
function prompt(n, vocabulary) {
  made += 1;
  const { ids } = text;
  return Array.from({ length: n }, (_, i) => (i ? ids[i % ids.length] : (made * STEP) % vocabulary));
}

/** @param {number[]} ids @param {number} nTokens @returns {Promise<LabRun>} */
function run(ids, nTokens) {
  if (isStopped) return Promise.reject(STOPPED);
  const answer = new Answer();
  /** @type {RunRequest} */
  const message = {
    type: "generate",
    id: newId(),
    ids,
    params: { temperature: 0, max_tokens: nTokens, ignore_eos: true, seed: "1" },
    capture: false,
  };
  const segment = beginSegment(answer, message);
  return new Promise((resolve, reject) => {
    let firstAt = 0;
    let lastAt = 0;
    /** @param {Problem} error */
    const fail = (error) => {
      open.delete(segment.id);
      unfollow(segment.id);
      reject(error);
    };
    open.set(segment.id, fail);
    follow(answer, {
      name: () => "Lab",
      onRefused: (_, error) => fail(error),
      onEvent(_, event) {
        if (event?.type === "token") {
          lastAt = performance.now();
          firstAt ||= lastAt;
        }
        if (segment.running) return;
        const { timings, message: why } = segment;
        if (!timings || segment.nTokens < nTokens)
          return fail({ code: "ended", message: why || "The run ended early." });
        open.delete(segment.id);
        unfollow(segment.id);
        const written = answer.tokens.map(({ id }) => id);
        return resolve({ answer, segment, timings, ids: written, firstAt, lastAt });
      },
    });
    if (!send(message)) fail({ code: "lost", message: "The server is disconnected." });
  });
}
