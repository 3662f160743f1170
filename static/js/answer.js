// What one answer is made of: the generations ("segments") that wrote it, their tokens and marks.
//
// "Continue" adds a segment to the same answer, so tokens are numbered through the whole answer and
// a segment knows the number of its first token. Nothing here touches the page.

import { differences } from "./params.js";

/** @typedef {"sent"|"queued"|"prefill"|"writing"|"done"|"lost"} SegmentState */

/** One generation. `seq` is the last message seen of it; `request` what was asked for. */
export class Segment {
  constructor(id, request, base) {
    this.id = id;
    this.request = request;
    this.base = base;
    this.seq = 0;
    /** @type {SegmentState} */
    this.state = "sent";
    this.accepted = false;
    this.position = 0;
    this.prompt = [];
    this.promptIds = new Set();
    this.context = 0;
    this.params = null;
    this.capture = request?.capture ?? true;
    this.prefill = { done: 0, total: 0, reused: 0, ms: 0, gpuMs: null };
    /** Its chunks: {done, reused, ms, gpuMs, passedAt, receivedAt}. */
    this.chunks = [];
    this.promptStats = [];
    /** Every event of it that was taken, in order. */
    this.events = [];
    this.kvBlocks = 0;
    this.reason = "";
    this.message = "";
    this.timings = null;
    /** How long the server took to make tokens of the prompt; null: not known. */
    this.preparedMs = null;
    /** When this page sent the request, by its own clock; null when a reload forgot it. */
    this.sentAt = null;
    this.nTokens = 0;
    /** Text of a segment whose tokens are not here (yet, or any more); it stands in their place. */
    this.plain = null;
  }

  get running() {
    return this.state !== "done" && this.state !== "lost";
  }

  /** Tokens in the context: the prompt and what was written. */
  get used() {
    return this.accepted ? Math.max(this.prompt.length + this.nTokens, this.prefill.done) : 0;
  }
}

export class Answer {
  constructor() {
    /** @type {Segment[]} */
    this.segments = [];
    /** `token` events in order, each with `segment`. */
    this.tokens = [];
    /**
     * Where settings changed: {segment, index, changes, told}, the last two [{name, from, to}]. `changes` is what the
     * token at `index` saw; `told` is what people read: a whole drag at its last mark, else nothing.
     */
    this.marks = [];
    /** Grows when tokens changed in another way than by appending. */
    this.edition = 0;
  }

  get segment() {
    return this.segments.at(-1) ?? null;
  }

  get running() {
    return this.segment?.running ?? false;
  }

  /** The text, with the texts of segments whose tokens are gone. */
  get text() {
    return this.segments.map((segment) => this.segmentText(segment)).join("");
  }

  get empty() {
    return !this.segments.some(({ plain, nTokens }) => plain || nTokens);
  }

  segmentText(segment) {
    if (segment.plain !== null) return segment.plain;
    return this.tokens
      .slice(segment.base, segment.base + segment.nTokens)
      .map((t) => t.text)
      .join("");
  }

  /** Begin another generation of this answer. */
  begin(id, request) {
    const segment = new Segment(id, request, this.tokens.length);
    this.segments.push(segment);
    this.edition += 1;
    return segment;
  }

  find(id) {
    return this.segments.find((segment) => segment.id === id) ?? null;
  }

  /** The settings (and `capture`) that acted on a token: the newest, with later changes taken back. */
  settingsAt({ segment, index }) {
    const settings = { ...segment.params, capture: segment.capture };
    for (const mark of this.marks.toReversed()) {
      if (mark.segment !== segment) continue;
      if (mark.index <= segment.base + index) break;
      for (const { name, from } of mark.changes) settings[name] = from;
    }
    return settings;
  }

  /**
   * Take one event of a segment. Returns false for a message that was seen before, null when one
   * before it is missing (the caller asks for it again), true when it was taken.
   */
  take(segment, seq, event) {
    if (seq <= segment.seq) return false;
    if (seq > segment.seq + 1) return null;
    segment.seq = seq;
    segment.events.push(event);
    if (segment.plain !== null) this.#refill(segment);
    HANDLERS[event.type]?.(this, segment, event);
    return true;
  }

  /** The messages of a segment known by its text come again: its tokens take the text's place. */
  #refill(segment) {
    segment.plain = null;
    segment.base = this.tokens.length;
    this.edition += 1;
  }

  /** Forget tokens of a segment because its messages are gone; keep the text. */
  lose(segment, text) {
    segment.plain = text;
    segment.state = "lost";
    this.edition += 1;
  }
}

/** What each event changes: (answer, segment, event). */
const HANDLERS = {
  accepted(answer, segment, event) {
    segment.accepted = true;
    segment.prompt = event.prompt;
    segment.promptIds = new Set(event.prompt.map(({ id }) => id));
    segment.context = event.context;
    segment.params = event.params;
    segment.capture = event.capture;
    segment.prefill.total = event.prompt.length;
    HANDLERS.queued(answer, segment, event);
  },

  queued(_answer, segment, { position }) {
    segment.position = position;
    segment.state = position > 0 ? "queued" : "prefill";
  },

  prefill(_answer, segment, event) {
    const { prefill } = segment;
    segment.state = "prefill";
    prefill.done = event.done;
    prefill.total = event.total;
    prefill.reused = event.reused;
    prefill.ms = event.ms; // since the start, unlike gpu_ms, which is of this chunk
    if (event.gpu_ms !== null) prefill.gpuMs = (prefill.gpuMs ?? 0) + event.gpu_ms;
    const { done, reused, ms, gpu_ms: gpuMs, passedAt, receivedAt } = event;
    segment.chunks.push({ done, reused, ms, gpuMs, passedAt, receivedAt });
    segment.kvBlocks = event.kv_blocks;
    for (const stats of event.stats ?? []) segment.promptStats[stats.position] = stats;
  },

  token(answer, segment, event) {
    segment.state = "writing";
    segment.kvBlocks = event.kv_blocks;
    segment.nTokens += 1;
    event.segment = segment;
    answer.tokens.push(event);
  },

  updated(answer, segment, event) {
    const changes = differences(segment.params, event.params);
    if (segment.capture !== event.capture) {
      changes.push({ name: "capture", from: segment.capture, to: event.capture });
    }
    segment.params = event.params;
    segment.capture = event.capture;
    if (changes.length) addMark(answer, segment, segment.base + event.index, changes);
  },

  done(_answer, segment, event) {
    segment.state = "done";
    segment.reason = event.reason;
    segment.message = event.message ?? "";
    segment.timings = event.timings;
  },
};

/** Marks of one drag (the same settings, few tokens apart) are told once, by the last of them. */
const SAME_DRAG_TOKENS = 12;
const names = (changes) => changes.map(({ name }) => name).join();

function addMark(answer, segment, index, changes) {
  const last = answer.marks.at(-1);
  const before = last?.segment === segment ? last : null;
  const sameDrag =
    before && index - before.index <= SAME_DRAG_TOKENS && names(before.changes) === names(changes);
  const mark = { segment, index, changes, told: changes };
  if (sameDrag) {
    mark.told = since(before.told.length ? before.told : before.changes, changes);
    before.told = [];
  }
  if (before?.index === index) {
    mark.changes = since(before.changes, changes);
    answer.marks.pop();
  }
  answer.marks.push(mark);
}

/** Two changes after each other as one. */
function since(earlier, later) {
  const started = new Map(earlier.map(({ name, from }) => [name, from]));
  const untouched = earlier.filter(({ name }) => !later.some((change) => change.name === name));
  const joined = later.map((change) => ({
    ...change,
    from: started.get(change.name) ?? change.from,
  }));
  return [...untouched, ...joined].filter(({ from, to }) => from !== to);
}
