// Putting other tokens in the place of one: what writes is stopped, the model is asked how likely it
// finds them there, and another version of the answer goes on from them.

import { inspect } from "./inspect.js";
import { asTheyRan } from "./reach.js";
import { branchOff, stop } from "./session.js";
import { changed, hasEngine, lastTurn, on, ready, shownAnswer, state } from "./state.js";

/** As many candidates as a drawn token tells. */
const TOP = 20;

/** What is to be put where, once the run has stopped: {answer, at, put}; null: nothing. */
let wanted = null;
/** The same, while the engine judges it. */
let judging = null;

export function setUpForcing() {
  on("turns tokens line", goOn);
}

/** Why nothing can be put in the place of token `at` of an answer, or "". */
export function whyNotHere(answer, at) {
  if (!answer || at === null) return "No token yet.";
  if (at < 0) return "A token of the prompt is given; only written ones can be others.";
  if (state.replay) return "A replay shows what was written; write it again to change it.";
  if (answer !== shownAnswer(lastTurn())) return "Only the newest answer can go on another way.";
  const segment = answer.tokens[at]?.segment;
  if (!segment?.accepted) return "The tokens of this answer are not here any more.";
  if (state.hello && segment.model && segment.model !== state.hello.model.name)
    return `${segment.model} wrote it; another model would read its tokens otherwise.`;
  return hasEngine() ? "" : "The engine is not ready.";
}

/** Write `put` ({id, text}[]) in the place of token `at`, and let the model go on from there. */
export function force(answer, at, put) {
  if (whyNotHere(answer, at) || !put.length) return;
  wanted = { answer, at, put };
  if (state.active) stop();
  goOn();
}

function goOn(topics) {
  if (!wanted || judging === wanted || !ready()) return;
  if (wanted.answer !== shownAnswer(lastTurn())) wanted = null;
  else if (!state.active) begin(wanted);
  else if (topics?.has("line")) stop(); // it may have been lost with the line before
}

async function begin(mine) {
  judging = mine;
  const { answer, at, put } = mine;
  try {
    const judged = await judge(answer, at, put);
    if (wanted !== mine || state.active || answer !== shownAnswer(lastTurn())) return;
    wanted = null;
    branchOff(answer, at, judged);
  } catch (error) {
    if (error.code === "lost") return; // asked again on the next line
    if (wanted === mine) wanted = null;
    state.problem = { code: error.code, message: error.message };
    changed("turns", "settings");
  } finally {
    if (judging === mine) judging = null;
  }
}

/** How likely the model finds tokens in that place, one after the other. */
async function judge(answer, at, put) {
  const { model } = state.hello;
  const { segment } = answer.tokens[at];
  const before = [...segment.prompt, ...answer.tokens.slice(segment.base, at)];
  const ids = [...before, ...put].map(({ id }) => id);
  const top = Math.min(TOP, model.vocab_size);
  const ran = asTheyRan(segment, before.length);
  const { arrays, info } = await inspect({ kind: "losses", ids, first: before.length - 1, top, ...ran });
  return put.map(({ id, text }, k) => ({
    id,
    text,
    eos: model.eos_ids.includes(id),
    logprob: arrays.logprob.values[k],
    rank: arrays.rank.values[k],
    candidates: k ? likeliest(arrays, info.pieces, k) : null,
  }));
}

/** The likeliest tokens in the k-th place, as candidates that no filter saw. */
function likeliest({ top_ids: ids, top_logprobs: logs }, pieces, k) {
  const width = ids.shape[1];
  return Array.from({ length: width }, (_, i) => ({
    id: ids.values[k * width + i],
    text: pieces[ids.values[k * width + i]],
    before: Math.exp(logs.values[k * width + i]),
    after: 0,
    cut: "",
  }));
}
