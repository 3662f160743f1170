// The conversation: what is asked of the server.

import { Answer } from "./answer.js";
import { continuation } from "./continuing.js";
import { send } from "./line.js";
import { drawSeed } from "./params.js";
import { save } from "./persist.js";
import { asTheyRan, goingOn, isNothing } from "./reach.js";
import { dropPatches } from "./reachdesk.js";
import { patchable, wireOf } from "./reachsetting.js";
import { dropRefills } from "./resume.js";
import { encode } from "./socket.js";
import { changed, lastTurn, ready, shownAnswer, state } from "./state.js";
import { showAnswer, view } from "./view.js";

/** The conversation as messages, up to (not with) turn `end`. */
export function messagesBefore(end = state.turns.length) {
  const messages = [];
  for (const turn of state.turns.slice(0, end)) {
    if (turn.mode === "completion") continue;
    if (turn.role === "user") messages.push({ role: "user", content: turn.text });
    else messages.push({ role: "assistant", content: shownAnswer(turn).text });
  }
  return messages;
}

/**
 * Send what was written in the composer. Returns false (and says why) when it cannot be sent. `own`
 * goes before the page's settings and `capture` before its switch, for this run only.
 */
export function ask(text, own = {}, capture = state.capture) {
  if (!ready() || state.active) return false;
  dropPatches();
  const mode = state.mode;
  const request =
    mode === "chat"
      ? { messages: [...messagesBefore(), { role: "user", content: text }] }
      : { prompt: text };
  if (mode === "chat") state.turns.push({ role: "user", text, mode });
  const answer = new Answer();
  state.turns.push({
    role: "model",
    mode,
    given: mode === "chat" ? "" : text,
    answers: [answer],
    shown: 0,
  });
  if (begin(answer, request, own, capture)) return true;
  dropTurn();
  return false;
}

/** Write the last answer again, as another version of it; `own` as for `ask`. */
export function regenerate(own = {}) {
  const turn = lastTurn();
  if (!turn || !ready() || state.active) return;
  const request =
    turn.mode === "chat"
      ? { messages: messagesBefore(state.turns.length - 1) }
      : { prompt: turn.given };
  turn.answers.push(new Answer());
  turn.shown = turn.answers.length - 1;
  if (!begin(shownAnswer(turn), request, own)) dropVersion(turn);
}

/** Write on from the end of the last answer: its run goes on. */
export function continueAnswer() {
  const turn = lastTurn();
  const answer = shownAnswer(turn);
  if (!answer || !ready() || state.active) return;
  const { segment } = answer;
  const rest = continuation(answer, segment, state.hello.model.name, state.settings.max_tokens);
  if (!rest) readAnew(turn, answer);
  else if (begin(answer, rest.request, rest.own, state.capture, null, rest.before))
    answer.segment.counted = rest.counted;
}

/** A run whose tokens are gone, or are another model's, cannot go on: another one reads its text. */
function readAnew(turn, answer) {
  const { text } = answer;
  const before = messagesBefore(state.turns.length - 1);
  const request =
    turn.mode === "completion"
      ? { prompt: turn.given + text }
      : text === ""
        ? { messages: before }
        : { messages: [...before, { role: "assistant", content: text }], continue_final: true };
  begin(answer, request);
}

/**
 * Let the last answer go on another way: a version of it that has `put` (tokens of a Branch) in the
 * place of token `at`. The page's settings act from there on, and what was before is as it ran; the
 * random numbers stay the run's.
 */
export function branchOff(answer, at, put) {
  const turn = lastTurn();
  const { segment, number, id, text, eos, logprob, candidates } = answer.tokens[at];
  const lead = answer.tokens.slice(segment.base, at);
  const was = { id, text: text || (candidates.find((one) => one.id === id)?.text ?? ""), eos, logprob };
  const branch = { of: turn.answers.indexOf(answer), at, put, was, asked: segment.asked };
  const request = {
    ids: [...segment.prompt, ...lead, ...put].map((token) => token.id),
    written: lead.length + put.length,
  };
  const seed = String(segment.request?.params.seed ?? segment.params.seed);
  const own = { seed, first_index: number + put.length };
  turn.answers.push(new Answer());
  turn.shown = turn.answers.length - 1;
  const from = segment.prompt.length + lead.length;
  const { reached: ran = [] } = asTheyRan(segment, from);
  if (!begin(shownAnswer(turn), request, own, state.capture, branch, { ran, from }))
    dropVersion(turn, branch.of);
}

/** `before`: {ran, from} of a text that goes on, see `goingOn` of reach.js; null: it begins. */
function begin(answer, request, own = {}, capture = state.capture, branch = null, before = null) {
  state.problem = null;
  const { seed, ...params } = state.settings;
  const nTokens = request.ids?.length ?? lastTurn().answers[0].segments[0]?.prompt.length ?? 0;
  const reach = wireOf(patchable(state.reach.setting, nTokens));
  const full = {
    type: "generate",
    id: newId(),
    ...request,
    params: { ...params, seed: seed === "" ? drawSeed() : seed, ...own },
    capture,
    ...(isNothing(reach) ? {} : { reach }),
    ...(before && goingOn(before.ran, before.from, nTokens - 1, reach)),
  };
  const limit = state.hello.limits.message_bytes;
  const size = new TextEncoder().encode(encode(full)).length;
  if (size > limit) {
    state.problem = {
      code: "too_long",
      message:
        `This would be a message of ${kilobytes(size)}, but the server takes ${kilobytes(limit)}. ` +
        "Shorten the prompt or start a new chat.",
    };
    changed("turns");
    return false;
  }
  const parent = branch && lastTurn().answers[branch.of];
  const segment = answer.begin(full.id, full, branch, parent);
  Object.assign(segment, { sentAt: performance.now(), model: state.hello.model.name });
  state.active = answer;
  showAnswer(answer);
  view.pinned = null;
  send(full);
  save();
  changed("turns", "tokens", "focus");
  return true;
}

const kilobytes = (n) => `${Math.ceil(n / 1024)} KB`;

/** An id for a generation; 16 characters of base64url. */
export function newId() {
  const raw = String.fromCharCode(...crypto.getRandomValues(new Uint8Array(12)));
  return btoa(raw).replaceAll("+", "-").replaceAll("/", "_");
}

/** End the writing and keep the text. */
export function stop() {
  if (state.replay) return false;
  const segment = state.active?.segment;
  if (!segment) return false;
  send({ type: "stop", id: segment.id });
  return true;
}

export function newChat() {
  if (state.replay) return;
  stop();
  dropRefills();
  dropPatches();
  Object.assign(state, { turns: [], active: null, problem: null });
  showAnswer(null);
  save();
  changed("turns", "tokens", "focus");
}

/** Show a version of the last answer, by its number. */
export function showVersion(version) {
  const turn = lastTurn();
  if (!turn || state.active) return;
  turn.shown = Math.min(turn.answers.length - 1, Math.max(0, version));
  showAnswer(shownAnswer(turn));
  save();
  changed("turns");
}

/** A request was refused: take it back out. Returns its prompt if that left the conversation too. */
export function takeBack(answer) {
  state.active = null;
  const turn = lastTurn();
  const { segment } = answer;
  const { messages, prompt } = segment.request;
  let returned = "";
  if (segment.branch) dropVersion(turn, segment.branch.of);
  else if (answer.segments.length > 1) {
    answer.segments.pop();
    answer.edition += 1;
  } else if (turn.answers.length > 1) dropVersion(turn);
  else {
    dropTurn();
    returned = prompt ?? messages.at(-1).content;
  }
  save();
  changed("turns", "tokens", "settings");
  return returned;
}

/** Take back the newest version of an answer, and show another. */
function dropVersion(turn, shown = turn.answers.length - 2) {
  turn.answers.pop();
  turn.shown = shown;
  showAnswer(shownAnswer(turn));
}

function dropTurn() {
  const turn = state.turns.pop();
  if (turn.mode === "chat") state.turns.pop();
  showAnswer(shownAnswer(lastTurn()));
  changed("turns", "tokens");
}
