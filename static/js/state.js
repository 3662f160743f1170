// State of the page and its change notification.
//
// Messages arrive faster than frames: a change marks its topics (`setState`, or `changed(topic)` for
// what lies deeper), and each listener of a changed topic runs once in the next animation frame.

/** Stands for what main.js sets before anything reads it. @type {any} */
const SET_BY_MAIN = null;

const values = {
  /**
   * Connection to the server: "connecting", "open" or "lost".
   *
   * @type {"connecting" | "open" | "lost"}
   */
  connection: "connecting",
  /** Time of the next connection attempt (ms, Date.now clock); 0 when none is planned. */
  retryAt: 0,
  /** Why an engine in this browser was lost, or "". */
  lost: "",
  /** Last `status` message: {state, message, progress}. @type {EngineStatus} */
  engine: { state: "connecting", message: "", progress: null },
  /** Last `hello` message; stays while the engine restarts. @type {ToPage.Hello | null} */
  hello: null,
  /**
   * What is known of the conversation besides its turns: {id, title, system, created, rev, writer,
   * own, branchedFrom}. `id` is null until it is kept (conversations/keeper.js), `title` "" unless a person named
   * it, `system` its system prompt, `rev` and `writer` the kept revision that the page shows; `own`:
   * something was changed here since; `branchedFrom`: {id, title, message, answer} of the conversation of
   * which it is a branch from that place on (turns/turn-place.js), or null.
   *
   * @type {Conversation}
   */
  conversation: SET_BY_MAIN,
  /**
   * Why the browser does not keep conversations: {code, message, dismissed}, or null.
   *
   * @type {Unkept | null}
   */
  unkept: null,
  /**
   * Conversations that were left while they were written, `Left` of conversations/left.js.
   *
   * @type {Left[]}
   */
  left: [],
  /** Title of a copy that was made because another tab changed the conversation, or "". */
  copied: "",
  /**
   * The turns of the conversation: {role: "user", text} and {role: "model", mode, given, answers, shown};
   * a summary of the oldest turns (turns/summary.js) also has a field `summary`.
   *
   * @type {Turn[]}
   */
  turns: [],
  /** The answer being generated, or null. @type {Answer | null} */
  active: null,
  /** An error to show over the composer: {code, message} or null. @type {Problem | null} */
  problem: null,
  /** "chat" or "completion". @type {Mode} */
  mode: "chat",
  /** The open replay (replay/replay.js), or null. @type {OpenReplay | null} */
  replay: null,
  /**
   * Sampling settings, see settings/sampling-settings.js. `seed` is a string of digits or "".
   *
   * @type {Settings}
   */
  settings: SET_BY_MAIN,
  /** Name of the last preset that was chosen or matched, "" if none: the settings may be edited since. */
  lastPreset: "",
  capture: true,
  /**
   * Tokens a second; 0: one for each press; null: full speed (chat/pace.js).
   *
   * @type {number | null}
   */
  pace: null,
  /**
   * What becomes of a chat that is too long: "disabled", "auto", "summarize" or "slide", see
   * chat/truncation.js.
   *
   * @type {Truncation}
   */
  truncation: "disabled",
  /**
   * What answers must follow (chat/answer-fields.js).
   *
   * @type {AnswerFormat}
   */
  format: { kind: "", text: "" },
  /**
   * The tools that the model may call (tools/tools.js).
   *
   * @type {ToolSettings}
   */
  tools: { on: [], own: [], texts: [], auto: false, must: true, rounds: 4 },
  /**
   * Fewest tokens of a chunk that is moved, see chat/cache-reuse.js; null: as the server says.
   *
   * @type {number | null}
   */
  cacheReuse: null,
  /**
   * Interventions of the page: {setting, past, future}, see interventions/intervention-store.js.
   *
   * @type {InterventionStore}
   */
  interventions: SET_BY_MAIN,
  /**
   * The selected answer of a comparison (look/compare/), which the controls act on; or null.
   *
   * @type {Answer | null}
   */
  compared: null,
  /**
   * The page's own {settings, interventions} while its controls are bound to something else
   * (settings/bound-controls.js), and the name of that `target`; or null.
   *
   * @type {OwnControls | null}
   */
  own: null,
  /**
   * Number of tokens of the prompt in the composer: {tokens}, or null.
   *
   * @type {{tokens: number} | null}
   */
  counted: null,
  /** A key of METRICS (turns/metrics.js). @type {MetricName} */
  metric: "update",
};

/** Only the functions below change it. @type {Readonly<typeof values>} */
export const state = values;

/** Topics that a change of a field is about. @type {{[Name in keyof State]: string}} */
const TOPICS = {
  connection: "connection",
  retryAt: "connection",
  lost: "connection",
  engine: "connection",
  hello: "hello",
  conversation: "conversations",
  unkept: "turns conversations",
  left: "conversations",
  copied: "turns",
  turns: "turns",
  active: "turns",
  problem: "turns",
  mode: "settings turns",
  replay: "replay",
  settings: "settings",
  lastPreset: "settings",
  capture: "settings",
  pace: "settings",
  format: "settings",
  tools: "settings",
  truncation: "settings",
  cacheReuse: "settings",
  interventions: "interventions",
  compared: "look",
  own: "settings interventions",
  counted: "counted",
  metric: "metric",
};

/** Set fields before anything listens. @param {Partial<State>} fields */
export const beginState = (fields) => void Object.assign(values, fields);

/** Set fields, and mark what they are about as changed. @param {Partial<State>} fields */
export function setState(fields) {
  Object.assign(values, fields);
  for (const name in fields) changed(...TOPICS[/** @type {keyof State} */ (name)].split(" "));
}

/**
 * Set fields of the live conversation: of the state, or of what is suspended while a replay is open,
 * which nothing draws.
 *
 * @param {Partial<Suspended>} fields
 */
export function setLiveState(fields) {
  const { scales: _scales, view: _view, ...own } = fields;
  if (state.replay) Object.assign(state.replay.suspended, fields);
  else setState(own);
}

/** Set some of the sampling settings. @param {NamedSettings} settings */
export function setSettings(settings) {
  Object.assign(state.settings, settings);
  changed("settings");
}

/** Set what is known of the conversation besides its turns. @param {Partial<Conversation>} fields */
export function setConversation(fields) {
  Object.assign(state.conversation, fields);
  if (fields.system !== undefined) changed("system");
  if (fields.title !== undefined) changed("conversations");
}

/** Add turns at the end. @param {Turn[]} turns */
export function appendTurns(...turns) {
  state.turns.push(...turns);
  changed("turns");
}

/** Take the last turn away, and return it. */
export function popTurn() {
  changed("turns");
  return state.turns.pop();
}

/** Take a turn away. @param {Turn} turn */
export function deleteTurn(turn) {
  state.turns.splice(state.turns.indexOf(turn), 1);
  changed("turns");
}

/** @type {Array<{topics: string[], listener: (topics: Set<string>) => void}>} */
const listeners = [];
/** @type {Set<string>} */
const dirty = new Set();
let frame = 0;

/**
 * Call `listener` in the frame after any of `topics` changed.
 *
 * @param {string} topics separated by spaces
 * @param {(topics: Set<string>) => void} listener
 */
export function on(topics, listener) {
  listeners.push({ topics: topics.split(" "), listener });
}

/**
 * Mark topics as changed: connection, hello, turns, tokens, focus, settings, interventions,
 * counted, metric, size, theme, replay, conversations, system, look.
 *
 * @param {string[]} topics
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

/**
 * The live conversation: the one on the page, or the one suspended while a replay is open.
 *
 * @returns {Readonly<Suspended>}
 */
export const liveState = () => state.replay?.suspended ?? state;

/**
 * Do two `hello` messages name the same model, stored alike, and the same device?
 *
 * @param {ToPage.Hello} a
 * @param {ToPage.Hello} b
 */
export const sameEngine = (a, b) =>
  a.model.name === b.model.name && a.model.dtype === b.model.dtype && a.device.name === b.device.name;

/** Is an engine connected and ready? */
export const hasEngine = () => state.connection === "open" && state.engine.state === "ready";

/** May a request be sent? Not while a replay is open. */
export const ready = () => hasEngine() && !state.replay;

/**
 * The answer whose run the controls act on, or null. `of`: `state`, or `liveState()`.
 *
 * @param {Suspended} of
 */
export const steered = (of = state) => (state.compared?.running ? state.compared : of.active);

/** The model's last turn, or null. */
export function lastTurn() {
  const turn = state.turns.at(-1);
  return turn?.role === "model" ? turn : null;
}

/** The version of a model's turn that is shown. @param {Turn | null | undefined} turn */
export const shownAnswer = (turn) => turn?.answers?.[turn.shown] ?? null;
