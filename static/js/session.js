// The conversation: what is asked of the server, and what its messages change.

import { Answer } from "./answer.js";
import { freshScales, scales } from "./metrics.js";
import { differences, drawSeed } from "./params.js";
import { restore, save, saveSoon } from "./persist.js";
import { encode, Socket, socketUrl } from "./socket.js";
import { changed, lastTurn, ready, shownAnswer, state } from "./state.js";
import { note } from "./overhead.js";
import { showAnswer, view } from "./view.js";

/** While a slider is dragged, changes are sent this often at most; the last one always. */
const UPDATE_EVERY_MS = 100;

let socket = null;
/** Segments to be filled again from the server after a reload, in order: {answer, segment, text}. */
let toReplay = [];
let replaying = null;
/** Gives a rejected prompt back to the composer. */
let giveBack = () => {};

export function start(onRejected) {
  giveBack = onRejected;
  const kept = restore();
  if (kept) {
    Object.assign(state, { turns: kept.turns, mode: kept.mode ?? state.mode });
    toReplay = kept.replay;
    showAnswer(shownAnswer(lastTurn()));
    const last = toReplay.at(-1);
    if (last?.unfinished) state.active = last.answer;
  }
  socket = new Socket(socketUrl(), onMessage, onLine);
  socket.open();
  addEventListener("pagehide", save);
  changed("turns", "tokens", "line");
}

export const reconnect = () => socket.retry();
export const send = (message) => socket.send(message);

// ---- what the page asks for ------------------------------------------------------------------

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

/** Send what was written in the composer. Returns false (and says why) when it cannot be sent. */
export function ask(text) {
  if (!ready() || state.active) return false;
  const mode = state.mode;
  const request = mode === "chat"
    ? { messages: [...messagesBefore(), { role: "user", content: text }] }
    : { prompt: text };
  if (mode === "chat") state.turns.push({ role: "user", text, mode });
  const answer = new Answer();
  state.turns.push({ role: "model", mode, given: mode === "chat" ? "" : text, answers: [answer], shown: 0 });
  if (begin(answer, request)) return true;
  dropTurn();
  return false;
}

/** Write the last answer again, as another version of it. */
export function regenerate() {
  const turn = lastTurn();
  if (!turn || !ready() || state.active) return;
  const request = turn.mode === "chat" ? { messages: messagesBefore(state.turns.length - 1) } : { prompt: turn.given };
  turn.answers.push(new Answer());
  turn.shown = turn.answers.length - 1;
  if (!begin(shownAnswer(turn), request)) dropVersion(turn);
}

/** Write on from the end of the last answer. */
export function continueAnswer() {
  const turn = lastTurn();
  const answer = shownAnswer(turn);
  if (!answer || !ready() || state.active) return;
  const text = answer.text;
  const before = messagesBefore(state.turns.length - 1);
  const request = turn.mode === "completion" ? { prompt: turn.given + text }
    : text === "" ? { messages: before }
      : { messages: [...before, { role: "assistant", content: text }], continue_final: true };
  begin(answer, request);
}

function begin(answer, request) {
  state.problem = null;
  const { seed, ...params } = state.settings;
  const full = {
    type: "generate", id: newId(), ...request,
    params: { ...params, seed: seed === "" ? drawSeed() : seed }, capture: state.capture,
  };
  const limit = state.hello.limits.message_bytes;
  const size = new TextEncoder().encode(encode(full)).length;
  if (size > limit) {
    state.problem = {
      code: "too_long",
      message: `This would be a message of ${Math.ceil(size / 1024)} KB, but the server takes ${Math.floor(limit / 1024)} KB. Shorten the prompt or start a new chat.`,
    };
    changed("turns");
    return false;
  }
  answer.begin(full.id, full);
  state.active = answer;
  showAnswer(answer);
  view.pinned = null;
  socket.send(full);
  save();
  changed("turns", "tokens", "focus");
  return true;
}

/** An id for a generation; 16 characters of base64url. */
function newId() {
  const raw = String.fromCharCode(...crypto.getRandomValues(new Uint8Array(12)));
  return btoa(raw).replaceAll("+", "-").replaceAll("/", "_");
}

/** End the writing and keep the text. */
export function stop() {
  const segment = state.active?.segment;
  if (!segment) return false;
  socket.send({ type: "stop", id: segment.id });
  return true;
}

export function newChat() {
  stop();
  Object.assign(state, { turns: [], active: null, problem: null });
  showAnswer(null);
  save();
  changed("turns", "tokens", "focus");
}

/** Show another version of the last answer. */
export function showVersion(d) {
  const turn = lastTurn();
  if (!turn || state.active) return;
  turn.shown = Math.min(turn.answers.length - 1, Math.max(0, turn.shown + d));
  showAnswer(shownAnswer(turn));
  save();
  changed("turns");
}

let updateTimer = 0;
let lastUpdate = 0;
let asked = null;

/** Let the settings of the page act on what is being written, now or as soon as is fair. */
export function pushSettings() {
  if (updateTimer || !state.active) return;
  const pause = Math.max(0, lastUpdate + UPDATE_EVERY_MS - performance.now());
  updateTimer = setTimeout(sendUpdate, pause);
}

function sendUpdate() {
  updateTimer = 0;
  const segment = state.active?.segment;
  if (!segment?.running) return;
  const wanted = { ...state.settings, capture: state.capture };
  if (asked?.id !== segment.id) asked = { id: segment.id, ...(segment.params ?? segment.request.params), capture: segment.capture };
  const params = Object.fromEntries(differences(asked, wanted).map(({ name, to }) => [name, to]));
  const message = { type: "update", id: segment.id, params };
  if (asked.capture !== wanted.capture) message.capture = wanted.capture;
  if (!Object.keys(params).length && message.capture === undefined) return;
  if (!socket.send(message)) return;
  lastUpdate = performance.now();
  asked = { ...asked, ...params, capture: wanted.capture };
}

// ---- what the server says --------------------------------------------------------------------

function onLine(line, retryAt) {
  state.line = line;
  state.retryAt = retryAt;
  if (line !== "open" && replaying) {
    toReplay.unshift(replaying);
    replaying = null;
  }
  changed("line");
}

const HANDLERS = {
  hello(message) {
    const before = state.hello;
    state.hello = message;
    if (before && (before.model.name !== message.model.name || before.device.name !== message.device.name)) freshScales();
    if (!message.model.chat) state.mode = "completion";
    changed("hello", "settings", "size");
  },

  status(message) {
    state.engine = message;
    changed("line");
    if (message.state === "ready") pickUp();
  },

  event({ id, seq, event }) {
    const { answer, segment } = whose(id) ?? {};
    if (!segment) return;
    const taken = answer.take(segment, seq, event);
    if (taken === null) socket.send({ type: "resume", id, after: segment.seq });
    if (!taken) return;
    if (event.type === "token") onToken(answer, event);
    if (event.type === "prefill" && scales.settle(event.stats ?? [])) changed("metric");
    if (event.type === "done") onDone(answer, segment);
    saveSoon();
    changed("tokens");
  },

  error(message) {
    const { answer, segment } = whose(message.id) ?? {};
    if (message.code === "unknown_generation" && segment) return onForgotten(answer, segment);
    if (message.id && !segment) return undefined; // of a generation this page let go
    if (segment?.state === "done") return undefined; // a change that came after the end
    state.problem = message;
    if (segment && !segment.accepted) return onRejected(answer, message);
    changed("turns", "settings");
    return undefined;
  },
};

let onCounted = () => {};
/** Who hears the answers to `count`. */
export function listenCounted(listener) {
  onCounted = listener;
}

function onMessage(message) {
  if (message.type === "counted") onCounted(message);
  else HANDLERS[message.type]?.(message);
}

function whose(id) {
  for (const turn of state.turns.toReversed()) {
    for (const answer of turn.answers ?? []) {
      const segment = answer.find(id);
      if (segment) return { answer, segment };
    }
  }
  return null;
}

function onToken(answer, token) {
  note(token);
  if (token.stats && scales.settle([token.stats])) changed("metric");
  if (answer === view.answer) changed("focus");
}

function onDone(answer, segment) {
  if (replaying?.segment === segment) replayNext();
  if (state.active === answer && answer.segment === segment) {
    state.active = null;
    changed("turns");
  }
}

/** A request was refused: take it back out of the conversation, and the prompt to the composer. */
function onRejected(answer, message) {
  state.active = null;
  const turn = lastTurn();
  const segment = answer.segment;
  if (answer.segments.length > 1) {
    answer.segments.pop();
    answer.edition += 1;
  } else if (turn.answers.length > 1) dropVersion(turn);
  else {
    const { messages, prompt } = segment.request;
    dropTurn();
    giveBack(prompt ?? messages.at(-1).content, message);
  }
  save();
  changed("turns", "tokens", "settings");
}

/** Take back the newest version of an answer. */
function dropVersion(turn) {
  turn.answers.pop();
  turn.shown = turn.answers.length - 1;
  showAnswer(shownAnswer(turn));
}

function dropTurn() {
  const turn = state.turns.pop();
  if (turn.mode === "chat") state.turns.pop();
  showAnswer(shownAnswer(lastTurn()));
  changed("turns", "tokens");
}

// ---- after a lost line, a reload, a restart --------------------------------------------------

/** The engine is ready: go on where the line broke, and fill in what a reload forgot. */
function pickUp() {
  if (toReplay.length || replaying) return replayNext();
  const segment = state.active?.segment;
  if (segment?.running) socket.send({ type: "resume", id: segment.id, after: segment.seq });
  return undefined;
}

function replayNext() {
  replaying = toReplay.shift() ?? null;
  if (!replaying) return;
  const { segment } = replaying;
  segment.state = "sent";
  socket.send({ type: "resume", id: segment.id, after: segment.seq });
}

/** The server does not know a generation: never accepted (ask again), or gone (keep the text). */
function onForgotten(answer, segment) {
  if (replaying?.segment === segment) {
    answer.lose(segment, replaying.text);
    if (state.active === answer) state.active = null;
    replayNext();
  } else if (!segment.accepted && segment.running) {
    socket.send(segment.request);
    return;
  } else if (segment.running) {
    segment.state = "done";
    segment.reason = "error";
    segment.message = "The server no longer has this generation. Its text is kept; Continue writes on.";
    state.active = null;
  }
  save();
  changed("turns", "tokens", "focus");
}
