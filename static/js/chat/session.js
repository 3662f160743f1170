// The conversation: starting, continuing, branching and stopping runs.

import { Answer } from "../turns/answer.js";
import { partsOf } from "../turns/message-parts.js";
import { continuationRequest } from "../turns/continuation.js";
import { rulesAfter } from "../turns/answer-rules.js";
import { send } from "../net/connection.js";
import { keepSoon } from "../conversations/keeper.js";
import { save } from "../turns/persist.js";
import { answerFields, toolsField } from "./answer-fields.js";
import { beginSegment, newMessage, whyTooLong } from "./generate-message.js";
import { spansUpTo } from "../interventions/interventions.js";
import { clearPatches } from "../interventions/intervention-store.js";
import { withPatchesUpTo } from "../interventions/intervention-wire.js";
import { isWhole, messagesOf, ownSettings } from "../turns/summary.js";
import { appendTurns, changed, lastTurn, popTurn, ready, setState, shownAnswer, state } from "../state.js";
import { followNewest, showAnswer } from "../view.js";

/** @typedef {Partial<RunRequest>} Request */
/** @typedef {Pick<Before, "ran" | "from">} Continued */
/** A prompt that was refused. @typedef {ReturnType<typeof partsOf>} Withdrawn */

/** Return the system prompt: the conversation's, or the one that a replayed answer was given. */
export function systemPrompt() {
  if (!state.replay) return state.conversation.system;
  const asked = shownAnswer(lastTurn())?.segment?.originalRequest;
  const [first] = asked?.messages ?? [];
  return first?.role === "system" ? first.content : "";
}

/**
 * Return the conversation as messages, up to turn `end` (exclusive), with the system prompt, and with
 * a summary in place of the turns that it covers.
 */
export const messagesBefore = (end = state.turns.length) =>
  messagesOf(state.turns.slice(0, end), systemPrompt());

/**
 * Send a prompt. Returns false and sets `state.problem` when it cannot be sent. `overrides` replaces
 * settings of the page, and `capture` its switch, for this run only. `files`: names and lengths of
 * the attached files that the text begins with (attachments.js).
 *
 * @param {string} text
 * @param {NamedSettings} [overrides]
 * @param {boolean} [capture]
 * @param {ReplayFile.AttachedFile[]} [files]
 */
export function submitPrompt(text, overrides = {}, capture = state.capture, files = []) {
  if (!ready() || state.active) return false;
  clearPatches();
  removeBrokenSummary();
  const mode = state.mode;
  /** @type {Request} */
  const request =
    mode === "chat"
      ? { messages: [...messagesBefore(), { role: "user", content: text }], ...answerFields(true) }
      : { prompt: text, ...answerFields(true) };
  if (mode === "chat")
    appendTurns({ role: "user", text, mode, ...(files.length ? { files } : {}) });
  const turn = addTurn(mode, mode === "chat" ? "" : text);
  if (startRun(turn, request, overrides, capture)) return true;
  removeTurn();
  return false;
}

/**
 * Have the model go on after the calls of the last answer. Returns false and sets `state.problem` when
 * that cannot be sent.
 *
 * @param {ReplayFile.ToolUse} use the text outside of the calls, and the calls with their results
 */
export function sendResults(use) {
  const called = lastTurn();
  if (!called || !ready() || state.active) return false;
  called.tool_use = use;
  clearPatches();
  const turn = addTurn("chat", "");
  if (startRun(turn, { messages: messagesBefore(state.turns.length - 1), ...answerFields(false) })) return true;
  removeTurn();
  return false;
}

/** Add a turn of the model with an empty answer. @param {Mode} mode @param {string} given */
function addTurn(mode, given) {
  /** @type {ModelTurn} */
  const turn = { role: "model", mode, given, answers: [new Answer()], shown: 0 };
  appendTurns(turn);
  return turn;
}

/**
 * Have the model write a summary of the oldest turns, a plan of summary-plan.js. Returns its turn, or
 * null if it cannot be sent.
 *
 * @param {import("./summary-plan.js").SummaryPlan} plan
 */
export function startSummary({ messages, covers, maxTokens, slides }) {
  clearPatches();
  removeBrokenSummary();
  const turn = Object.assign(addTurn("chat", ""), { summary: { covers } });
  /** @type {Request} */
  const request = { messages, truncation: slides ? "slide" : "disabled" };
  if (startRun(turn, request, { max_tokens: maxTokens, stop: [] })) return turn;
  removeTurn();
  return null;
}

/** A summary that was stopped or failed gives way to the next turn. */
function removeBrokenSummary() {
  const turn = lastTurn();
  if (turn?.summary && !isWhole(turn)) popTurn();
}

/**
 * Generate the last answer again as another version; `overrides` as in `submitPrompt`.
 *
 * @param {NamedSettings} [overrides]
 */
export function regenerate(overrides = {}) {
  const turn = lastTurn();
  if (!turn || !ready() || state.active) return;
  turn.answers.push(new Answer());
  turn.shown = turn.answers.length - 1;
  if (!startRun(turn, withFields(turn), overrides)) removeVersion(turn);
}

/** Return the request that the last turn answers. @param {ModelTurn} turn @returns {Request} */
function requestOf({ mode, given, summary, answers }) {
  if (mode !== "chat") return { prompt: given };
  if (!summary) return { messages: messagesBefore(state.turns.length - 1) };
  const { messages, truncation } = answers[0].segments[0].request;
  return { messages, truncation };
}

/** Return the request that the last turn answers, with the page's format and tools. @param {ModelTurn} turn */
const withFields = (turn) =>
  turn.summary
    ? requestOf(turn)
    : { ...requestOf(turn), ...answerFields(state.turns.at(-2)?.role !== "model") };

/** Send what was refused while its conversation was left (conversations/left.js) again. */
export function sendAgain() {
  const turn = lastTurn();
  const answer = shownAnswer(turn);
  if (!turn || !answer || !ready() || state.active) return;
  if (!answer.empty) return void continueAnswer();
  const [request, overrides] = [withFields(turn), ownSettings(turn)];
  answer.segments = [];
  answer.edition += 1;
  startRun(turn, request, overrides);
}

/** Continue the last answer from its end. */
export function continueAnswer() {
  const turn = lastTurn();
  const { answer, segment } = latestRun(turn);
  if (!turn || !answer || !segment || !ready() || state.active) return;
  const limit = ownSettings(turn).max_tokens ?? state.settings.max_tokens;
  const model = state.hello?.model.name ?? "";
  const rest = continuationRequest(answer, segment, model, limit);
  if (!rest) continueAsNewPrompt(turn, answer);
  else {
    const begun = startRun(turn, rest.request, rest.overrides, state.capture, null, rest.before);
    if (begun) begun.alreadyCounted = rest.counted;
  }
}

/** The shown answer of a turn and its latest run. @param {ModelTurn | null} turn */
function latestRun(turn) {
  const answer = shownAnswer(turn);
  return { answer, segment: answer?.segment ?? null };
}

/**
 * Continue by text, for a run whose tokens are gone or were generated by another model.
 *
 * @param {ModelTurn} turn
 * @param {Answer} answer
 */
function continueAsNewPrompt(turn, answer) {
  const { text } = answer;
  const asked = { ...requestOf(turn), ...(!turn.summary && toolsField()) };
  /** @type {FromPage.Message} */
  const begun = { role: "assistant", content: text };
  /** @type {Request} */
  const request =
    turn.mode === "completion"
      ? { prompt: turn.given + text }
      : text === ""
        ? withFields(turn)
        : { ...asked, messages: [...(asked.messages ?? []), begun], continue_final: true };
  startRun(turn, request);
}

/**
 * Branch the last answer: start a version that has `put` (tokens of a Branch) in place of token
 * `at`. The page's settings act from there on; seed and random numbers stay the run's.
 *
 * @param {Answer} answer
 * @param {number} at
 * @param {Branch["put"]} put
 * @param {boolean} [paused] does it begin with a pause, whatever the page's pace is?
 */
export function startBranch(answer, at, put, paused = false) {
  const turn = lastTurn();
  if (!turn) return;
  const { segment, number, id, text, eos, logprob, candidates } = answer.tokens[at];
  const lead = answer.tokens.slice(segment.base, at);
  const was = { id, text: text || (candidates.find((one) => one.id === id)?.text ?? ""), eos, logprob };
  /** @type {Branch} */
  const branch = { of: turn.answers.indexOf(answer), at, put, was, asked: segment.originalRequest };
  const request = {
    ids: [...segment.prompt, ...lead, ...put].map((token) => token.id),
    written: lead.length + put.length,
    ...rulesAfter(segment.request, lead.length + put.length - segment.nGiven),
    ...(paused && { pace: 0 }),
  };
  const seed = String(segment.request?.params.seed ?? segment.params?.seed);
  const overrides = { seed, first_index: number + put.length };
  turn.answers.push(new Answer());
  turn.shown = turn.answers.length - 1;
  const from = segment.prompt.length + lead.length;
  const { reached: ran = [] } = spansUpTo(segment, from);
  if (!startRun(turn, request, overrides, state.capture, branch, { ran, from }))
    removeVersion(turn, branch.of);
}

/**
 * Send a run for the shown answer of the last turn. Returns it, or null with `state.problem` set.
 * `before`: {ran, from} of a continued text, see `continuedSpans` (interventions.js), or null.
 *
 * @param {ModelTurn} turn
 * @param {Request} request
 * @param {NamedSettings} [overrides]
 * @param {boolean} [capture]
 * @param {Branch | null} [branch]
 * @param {Continued | null} [before]
 */
function startRun(
  turn,
  request,
  overrides = {},
  capture = state.capture,
  branch = null,
  before = null,
) {
  delete turn.tool_use; // it is of another version
  const answer = turn.answers[turn.shown];
  const nTokens = request.ids?.length ?? turn.answers[0].segments[0]?.prompt.length ?? 0;
  const { settings, interventions } = state;
  const full = newMessage(request, {
    params: { ...settings, ...ownSettings(turn), ...overrides },
    capture,
    interventions: withPatchesUpTo(interventions.setting, nTokens),
    before: before && { ...before, last: nTokens - 1 },
  });
  const problem = whyTooLong(full);
  setState({ problem });
  if (problem) return null;
  const parent = branch && turn.answers[branch.of];
  const segment = beginSegment(answer, full, branch, parent);
  setState({ active: answer });
  showAnswer(answer);
  followNewest();
  send(full);
  save();
  changed("tokens");
  return segment;
}

/** Show a version of the last answer by its number. @param {number} version */
export function showVersion(version) {
  const turn = lastTurn();
  if (!turn || state.active) return;
  turn.shown = Math.min(turn.answers.length - 1, Math.max(0, version));
  showAnswer(shownAnswer(turn));
  save();
  keepSoon();
  changed("turns");
}

/**
 * Remove a refused request. Returns the prompt {text, files} if its turn is removed, too.
 *
 * @param {Answer} answer
 */
export function withdrawRequest(answer) {
  setState({ active: null });
  const turn = lastTurn();
  /** @type {Withdrawn} */
  let returned = { text: "", files: [] };
  if (!turn) return returned;
  const { segment } = answer;
  if (segment?.branch) removeVersion(turn, segment.branch.of);
  else if (answer.segments.length > 1) {
    answer.segments.pop();
    answer.edition += 1;
  } else if (turn.answers.length > 1) removeVersion(turn);
  else if (turn.summary) removeTurn();
  else {
    const asked = state.turns.at(-2);
    const isChat = turn.mode === "chat" && asked?.role === "user";
    returned = isChat ? partsOf(asked) : { text: turn.given, files: [] };
    removeTurn();
  }
  save();
  if (state.turns.length) keepSoon();
  changed("turns", "tokens", "settings");
  return returned;
}

/**
 * Keep a refused request in the conversation, without an answer; `sendAgain` sends it.
 *
 * @param {Answer} answer
 * @param {ToPage.Error} error
 */
export function keepRequest(answer, { message }) {
  setState({ active: null });
  Object.assign(answer.segment ?? {}, { state: "done", reason: "error", message, textOnly: "" });
  answer.edition += 1;
  save();
  keepSoon();
  changed("turns", "tokens");
}

/** Remove the newest version of an answer and show another. @param {ModelTurn} turn */
function removeVersion(turn, shown = turn.answers.length - 2) {
  turn.answers.pop();
  turn.shown = shown;
  showAnswer(shownAnswer(turn));
}

function removeTurn() {
  const turn = popTurn();
  const isAnswer = state.turns.at(-1)?.role === "user"; // not the text after a call
  if (turn?.mode === "chat" && !turn.summary && isAnswer) popTurn();
  showAnswer(shownAnswer(lastTurn()));
  changed("tokens");
}
