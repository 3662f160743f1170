// Runs of Lab: prompts as token ids, outside the conversation, one after another or together.

import { beginSegment } from "../../chat/generate-message.js";
import { send } from "../../net/connection.js";
import { spansUpTo } from "../../interventions/interventions.js";
import { follow, unfollow } from "../../net/followed-runs.js";
import { inspect, tokenize } from "../../net/inspect.js";
import { newId } from "../../net/new-id.js";
import { lastTurn, shownAnswer } from "../../state.js";
import { Answer } from "../../turns/answer.js";
import { whyOtherModel } from "../shared/context.js";

/** Text that prompts are made of, repeated as often as needed. */
const TEXT =
  "The keeper of the lighthouse climbed the stairs every evening, counted the steps aloud, and wrote " +
  "down how many ships had passed, what the wind had said, and which of the gulls had come back. ";
/** Step between the first tokens of prompts; a prime, so that they repeat late. */
const STEP = 7919;

export const STOPPED = { code: "stopped", message: "Stopped." };

/** Fewest tokens of an answer with its prompt that `text` takes. */
const LEAST = 24;

/** Tokens of `TEXT`, and the model whose tokenizer made them. @type {{model: string, tokens: LabText["tokens"]}} */
let own = { model: "", tokens: [] };
/** Number of prompts made so far; each starts with a different token. */
let made = 0;
/** What stops each run and question that is not over yet. @type {Set<() => void>} */
const open = new Set();
let isStopped = false;

/** Stop all runs and questions, and start no more. */
export function stopBench() {
  isStopped = true;
  for (const stop of open) stop();
}

/**
 * Return a bench for an experiment, whose rows go to `show`, all of them each time.
 *
 * @param {ToPage.Hello} hello
 * @param {(rows: LabRow[]) => void} show
 * @returns {Promise<Bench>}
 */
export async function openBench(hello, show) {
  isStopped = false;
  if (own.model !== hello.model.name) {
    const { tokens } = await tokenize({ text: TEXT });
    own = { model: hello.model.name, tokens };
  }
  /** @type {LabRow[]} */
  let rows = [];
  const add = (/** @type {LabRow} */ row) => {
    rows = [...rows, row];
    show(rows);
  };
  return { hello, add, show, run, ask, text, prompt: (n) => prompt(n, hello.model.vocab_size) };
}

/** @type {Bench["text"]} */
async function text(n) {
  const answer = shownAnswer(lastTurn());
  const segment = answer?.segment;
  if (answer && segment?.accepted && !segment.edited && !segment.running && !whyOtherModel(segment)) {
    const written = answer.tokens.slice(segment.base, segment.base + segment.nTokens);
    const tokens = [...segment.prompt, ...written].slice(0, n);
    if (tokens.length >= LEAST) return { tokens, spans: spansUpTo(segment, tokens.length) };
  }
  return { tokens: Array.from({ length: n }, (_, i) => own.tokens[i % own.tokens.length]), spans: {} };
}

/** @type {Bench["ask"]} */
function ask(question) {
  if (isStopped) return Promise.reject(STOPPED);
  return new Promise((resolve, reject) => {
    const stop = () => reject(STOPPED);
    open.add(stop);
    inspect(question).then(resolve, reject).finally(() => open.delete(stop));
  });
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
  const { tokens } = own;
  return Array.from({ length: n }, (_, i) => (i ? tokens[i % tokens.length].id : (made * STEP) % vocabulary));
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
    const end = () => {
      open.delete(stop);
      unfollow(segment.id);
    };
    /** @param {Problem} error */
    const fail = (error) => {
      end();
      reject(error);
    };
    const stop = () => {
      send({ type: "stop", id: segment.id });
      fail(STOPPED);
    };
    open.add(stop);
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
        end();
        const written = answer.tokens.map(({ id }) => id);
        return resolve({ answer, segment, timings, ids: written, firstAt, lastAt });
      },
    });
    if (!send(message)) fail({ code: "lost", message: "The server is disconnected." });
  });
}
