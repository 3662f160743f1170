// What the page knows, and who wants to hear when it changes.
//
// Messages arrive faster than frames: whoever changes something calls `changed(topic)`, and every
// listener of a changed topic is called once in the next animation frame.

export const state = {
  /** Line to the server: "connecting", "open" or "lost". */
  line: "connecting",
  /** When the next attempt to connect is made (ms, Date.now clock); 0 when none is planned. */
  retryAt: 0,
  /** Last `status` message: {state, message, progress}. */
  engine: { state: "connecting", message: "", progress: null },
  /** Last `hello` message; stays while the engine restarts. */
  hello: null,
  /** The conversation: {role: "user", text} and {role: "model", mode, given, answers, shown}. */
  turns: [],
  /** The answer being written, or null. */
  active: null,
  /** An error to show over the composer: {code, message} or null. */
  problem: null,
  /** "chat" or "completion". */
  mode: "chat",
  /** The replay on show (replay.js), or null. */
  replay: null,
  /** Sampling settings, see params.js. `seed` is a string of digits or "". */
  settings: null,
  capture: true,
  /** What is changed inside the model: {setting, past, future}, see reachdesk.js. */
  reach: null,
  /** Tokens of the prompt in the composer: {tokens, fresh} or null. */
  counted: null,
  metric: "update",
};

const listeners = [];
const dirty = new Set();
let frame = 0;

/** Call `listener` in the frame after any of `topics` changed. */
export function on(topics, listener) {
  listeners.push({ topics: topics.split(" "), listener });
}

/** Say that topics changed: line, hello, turns, tokens, focus, settings, reach, counted, metric, size, theme, replay. */
export function changed(...topics) {
  for (const topic of topics) dirty.add(topic);
  if (!frame) frame = requestAnimationFrame(flush);
}

function flush() {
  frame = 0;
  const topics = new Set(dirty);
  dirty.clear();
  for (const { topics: wanted, listener } of listeners) {
    if (wanted.some((topic) => topics.has(topic))) listener(topics);
  }
}

/** The conversation the server knows: the one on show, or the one a replay has set aside. */
export const live = () => state.replay?.aside ?? state;

/** Do two `hello` messages tell of the same model on the same device? */
export const sameEngine = (a, b) =>
  a.model.name === b.model.name && a.device.name === b.device.name;

/** Is there an engine that answers? */
export const hasEngine = () => state.line === "open" && state.engine.state === "ready";

/** May a request about what is on show be sent now? */
export const ready = () => hasEngine() && !state.replay;

/** The model's last turn, or null. */
export function lastTurn() {
  const turn = state.turns.at(-1);
  return turn?.role === "model" ? turn : null;
}

/** The answer that is shown of a model's turn. */
export const shownAnswer = (turn) => turn?.answers[turn.shown] ?? null;
