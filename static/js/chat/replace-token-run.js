// Token replacement: stops the run, scores the replacement tokens, and starts a branch with them.

import { inspect } from "../net/inspect.js";
import { spansUpTo } from "../interventions/interventions.js";
import { isPaused } from "./pace.js";
import { startBranch } from "./session.js";
import { stop } from "../turns/stop.js";
import { changed, hasEngine, lastTurn, on, ready, setState, shownAnswer, state } from "../state.js";

/** Number of candidates per token, as a sampled token has. */
const TOP = 20;

/** @typedef {{id: number, text: string}} Piece */
/**
 * `paused`: the run was paused, and so begins the branch: who steps through a text goes on stepping.
 *
 * @typedef {{answer: Answer, at: number, put: Piece[], paused: boolean}} Replacement
 */

/** The requested replacement, waiting for the run to stop; null: none. @type {Replacement | null} */
let wanted = null;
/** The replacement being scored by the engine. @type {Replacement | null} */
let scoring = null;

export function setUpReplaceTokenRun() {
  on("turns tokens connection", goOn);
}

/**
 * Why token `at` of an answer cannot be replaced, or "".
 *
 * @param {Answer | null} answer
 * @param {number | null} at
 */
export function whyNotReplaceable(answer, at) {
  if (!answer || at === null) return "No token yet.";
  if (at < 0) return "Prompt tokens cannot be replaced, only generated ones.";
  if (state.replay) return "A replay is read-only; run it again to change it.";
  if (answer !== shownAnswer(lastTurn())) return "Only the newest answer can be changed.";
  const segment = answer.tokens[at]?.segment;
  if (!segment?.accepted) return "The tokens of this answer are no longer available.";
  if (state.hello && segment.model && segment.model !== state.hello.model.name)
    return `Written by ${segment.model}; the current model has another vocabulary.`;
  return hasEngine() ? "" : "The engine is not ready.";
}

/**
 * Replace token `at` by `put` and let the model continue from there.
 *
 * @param {Answer | null} answer
 * @param {number | null} at
 * @param {Piece[]} put
 */
export function replaceToken(answer, at, put) {
  if (!answer || at === null || whyNotReplaceable(answer, at) || !put.length) return;
  wanted = { answer, at, put, paused: isPaused(answer.segment) };
  if (state.active) stop();
  goOn();
}

/** @param {Set<string>} [topics] */
function goOn(topics) {
  if (!wanted || scoring === wanted || !ready()) return;
  if (wanted.answer !== shownAnswer(lastTurn())) wanted = null;
  else if (!state.active) begin(wanted);
  else if (topics?.has("connection")) stop(); // the first stop may be lost with the connection
}

/** @param {Replacement} mine */
async function begin(mine) {
  const { answer, at, paused } = mine;
  const { hello } = state;
  if (!hello) return;
  scoring = mine;
  try {
    const scored = await scoreTokens(mine, hello);
    if (wanted !== mine || state.active || answer !== shownAnswer(lastTurn())) return;
    wanted = null;
    startBranch(answer, at, scored, paused);
  } catch (error) {
    const { code, message } = /** @type {Problem} */ (error);
    if (code === "lost") return; // scored again after reconnecting
    if (wanted === mine) wanted = null;
    setState({ problem: { code, message } });
    changed("settings");
  } finally {
    if (scoring === mine) scoring = null;
  }
}

/**
 * Return what an upstream told of the replacement tokens: it cannot be asked about them.
 *
 * @param {Omit<Replacement, "paused">} replacement
 * @param {number[]} eosIds
 */
function toldScores({ answer, at, put }, eosIds) {
  const known = put.length === 1 ? answer.tokens[at].candidates : [];
  return put.map(({ id, text }, k) => {
    const rank = known.findIndex((one) => one.id === id);
    return {
      id,
      text,
      eos: eosIds.includes(id),
      logprob: rank < 0 ? NaN : Math.log(known[rank].before),
      rank: rank < 0 ? null : rank,
      candidates: k ? [] : null,
    };
  });
}

/**
 * Ask the model for the probability of each replacement token in its place.
 *
 * @param {Replacement} replacement
 * @param {ToPage.Hello} hello
 */
async function scoreTokens({ answer, at, put }, { model, upstream }) {
  if (upstream) return toldScores({ answer, at, put }, model.eos_ids);
  const { segment } = answer.tokens[at];
  const before = [...segment.prompt, ...answer.tokens.slice(segment.base, at)];
  const ids = [...before, ...put].map(({ id }) => id);
  const top = Math.min(TOP, model.vocab_size);
  const ran = spansUpTo(segment, before.length);
  const first = before.length - 1;
  const { arrays, info } = await inspect({ kind: "losses", ids, first, top, ...ran });
  return put.map(({ id, text }, k) => ({
    id,
    text,
    eos: model.eos_ids.includes(id),
    logprob: arrays.logprob.values[k],
    rank: arrays.rank.values[k],
    candidates: k ? topCandidates(arrays, info.pieces, k) : null,
  }));
}

/**
 * The most likely tokens in the k-th place, as unfiltered candidates.
 *
 * @param {FrameAnswer["arrays"]} arrays
 * @param {Record<number, string>} pieces
 * @param {number} k
 * @returns {ReplayFile.CandidateText[]}
 */
function topCandidates({ top_ids: ids, top_logprobs: logs }, pieces, k) {
  const width = ids.shape[1];
  return Array.from({ length: width }, (_, i) => ({
    id: ids.values[k * width + i],
    text: pieces[ids.values[k * width + i]],
    before: Math.exp(logs.values[k * width + i]),
    after: 0,
    cut: "",
  }));
}
