// @ts-nocheck
// State of the page and its change notification.
//
// Messages arrive faster than frames: code that changes the state calls `changed(topic)`, and each
// listener of a changed topic runs once in the next animation frame.

export const state = {
  /** Connection to the server: "connecting", "open" or "lost". */
  connection: "connecting",
  /** Time of the next connection attempt (ms, Date.now clock); 0 when none is planned. */
  retryAt: 0,
  /** Why an engine in this browser was lost, or "". */
  lost: "",
  /** Last `status` message: {state, message, progress}. */
  engine: { state: "connecting", message: "", progress: null },
  /** Last `hello` message; stays while the engine restarts. */
  hello: null,
  /**
   * What is known of the conversation besides its turns: {id, title, system, created, rev, writer,
   * own, branchedFrom}. `id` is null until it is kept (conversations/keeper.js), `title` "" unless a person named
   * it, `system` its system prompt, `rev` and `writer` the kept revision that the page shows; `own`:
   * something was changed here since; `branchedFrom`: {id, title, message, answer} of the conversation of
   * which it is a branch from that place on (turns/turn-place.js), or null.
   */
  conversation: null,
  /** Why the browser does not keep conversations: {code, message, dismissed}, or null. */
  unkept: null,
  /** Conversations that were left while they were written, `Left` of conversations/left.js. */
  left: [],
  /** Title of a copy that was made because another tab changed the conversation, or "". */
  copied: "",
  /**
   * The turns of the conversation: {role: "user", text} and {role: "model", mode, given, answers, shown};
   * a summary of the oldest turns (turns/summary.js) also has a field `summary`.
   */
  turns: [],
  /** The answer being generated, or null. */
  active: null,
  /** An error to show over the composer: {code, message} or null. */
  problem: null,
  /** "chat" or "completion". */
  mode: "chat",
  /** The open replay (replay/replay.js), or null. */
  replay: null,
  /** Sampling settings, see settings/sampling-settings.js. `seed` is a string of digits or "". */
  settings: null,
  capture: true,
  /** Tokens a second; 0: one for each press; null: as fast as it goes (chat/pace.js). */
  pace: null,
  /**
   * What becomes of a chat that is too long: "disabled", "auto", "summarize" or "slide", see
   * chat/truncation.js.
   */
  truncation: "disabled",
  /** Fewest tokens of a chunk that is moved, see chat/cache-reuse.js; null: as the server says. */
  cacheReuse: null,
  /**
   * Interventions of the page: {setting, past, future}, see interventions/intervention-store.js.
   */
  interventions: null,
  /** The selected answer of a comparison (look/compare/), which the controls act on; or null. */
  compared: null,
  /**
   * The page's own {settings, interventions} while its controls are bound to something else
   * (settings/bound-controls.js), and the name of that `target`; or null.
   */
  own: null,
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

/**
 * Mark topics as changed: connection, hello, turns, tokens, focus, settings, interventions,
 * counted, metric, size, theme, replay, conversations, system, look.
 */
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

/** The live conversation: the one on the page, or the one suspended while a replay is open. */
export const liveState = () => state.replay?.suspended ?? state;

/** Do two `hello` messages name the same model and device? */
export const sameEngine = (a, b) =>
  a.model.name === b.model.name && a.device.name === b.device.name;

/** Is an engine connected and ready? */
export const hasEngine = () => state.connection === "open" && state.engine.state === "ready";

/** May a request be sent? Not while a replay is open. */
export const ready = () => hasEngine() && !state.replay;

/** The answer whose run the controls act on, or null. `of`: `state`, or `liveState()`. */
export const steered = (of = state) => (state.compared?.running ? state.compared : of.active);

/** The model's last turn, or null. */
export function lastTurn() {
  const turn = state.turns.at(-1);
  return turn?.role === "model" ? turn : null;
}

/** The version of a model's turn that is shown. */
export const shownAnswer = (turn) => turn?.answers[turn.shown] ?? null;
