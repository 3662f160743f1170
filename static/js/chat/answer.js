// What one answer is made of: the generations ("segments") that wrote it, their tokens and marks.
//
// "Continue" adds a segment to the same answer, so tokens are numbered through the whole answer and
// a segment knows the number of its first token. A branch (branch.js) is a segment that begins with
// tokens its run did not draw. Nothing here touches the page.

import { takeLead, takeStats, takeWritten } from "./branch.js";
import { goOnAfter, takeBefore } from "./continuing.js";
import { countPrompt, countToken, ExpertUse } from "./expertuse.js";
import { addMark } from "./marks.js";
import { differences } from "./params.js";
import { atStart, changedFrom, same } from "./reach.js";

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
    /** What is changed inside the model now, and what was: see `atStart` of reach.js. */
    this.reach = request?.reach ?? {};
    this.reached = [];
    this.prefill = { done: 0, total: 0, reused: 0, ms: 0, gpuMs: null };
    /** Its chunks: {done, reused, ms, gpuMs, passedAt, receivedAt}. */
    this.chunks = [];
    this.promptStats = [];
    /** Every event of it that was taken, in order. */
    this.events = [];
    this.kvBlocks = 0;
    /** Experts that its steps found on the device and brought there; null: all lie there. */
    this.experts = null;
    /** How many of the prompt's tokens were found in the cache when it was first read. */
    this.promptReused = 0;
    this.reason = "";
    this.message = "";
    this.timings = null;
    /** How long the server took to make tokens of the prompt; null: not known. */
    this.preparedMs = null;
    /** When this page sent the request, by its own clock; null when a reload forgot it. */
    this.sentAt = null;
    this.nTokens = 0;
    /** What makes it a branch (branch.js), and the answer it parted from; null: it is none. */
    this.branch = null;
    this.parent = null;
    /** The segment it goes on after, by its ids (continuing.js); null: it begins with a text. */
    this.before = null;
    this.continuedFrom = null;
    /** How many tokens its run's max_tokens is less than the page's: they were written before. */
    this.counted = 0;
    /** Name of the model that wrote it; null: not known. */
    this.model = null;
    /** How many of its tokens its run was given, and did not draw. */
    this.given = 0;
    /** Text of a segment whose tokens are not here (yet, or any more); it stands in their place. */
    this.plain = null;
  }

  get running() {
    return this.state !== "done" && this.state !== "lost";
  }

  /** Number of the first token that its run drew, and how many it drew. */
  get first() {
    return this.base + this.given;
  }

  get nDrawn() {
    return this.nTokens - this.given;
  }

  /** What the answer was asked for: {messages, prompt, continue_final}. */
  get asked() {
    return this.branch?.asked ?? this.continuedFrom ?? this.request;
  }

  /** How many of the prompt's tokens are known as far as they can be. */
  get promptDone() {
    return this.branch ? this.prompt.length : this.prefill.done;
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
    /**
     * `token` events in order, each with its `segment`, its `place` in that, and its `number`: which
     * of the seed's random numbers drew it.
     */
    this.tokens = [];
    /**
     * Where settings changed: {segment, index, changes, told}, the last two [{name, from, to}]. `changes` is what the
     * token at `index` saw; `told` is what people read: a whole drag at its last mark, else nothing.
     */
    this.marks = [];
    /** Which experts its tokens and its prompt's were given to. */
    this.use = new ExpertUse();
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

  /** Begin another generation of this answer; `branch` makes it one of `parent`. */
  begin(id, request, branch = null, parent = null) {
    const segment = new Segment(id, request, this.tokens.length);
    Object.assign(segment, { branch, parent });
    goOnAfter(this, segment, this.segment);
    this.segments.push(segment);
    this.edition += 1;
    if (branch) takeLead(this, segment);
    return segment;
  }

  find(id) {
    return this.segments.find((segment) => segment.id === id) ?? null;
  }

  /**
   * The settings (with `capture` and `reach`) that acted on a token: the newest, with later changes
   * taken back.
   */
  settingsAt({ segment, place }) {
    const { params, capture, reach } = segment;
    const settings = { ...params, capture, reach };
    for (const mark of this.marks.toReversed()) {
      if (mark.segment !== segment) continue;
      if (mark.index <= segment.base + place) break;
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
    if (segment.branch) takeLead(this, segment);
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
    if (segment.branch) takeWritten(answer, segment, event);
    else {
      segment.prompt = event.prompt;
      segment.promptIds = new Set(event.prompt.map(({ id }) => id));
    }
    segment.context = event.context;
    segment.params = event.params;
    segment.capture = event.capture;
    segment.reach = segment.request?.reach ?? {};
    segment.reached = reachedBy(segment.request, event.prompt.length);
    if (segment.before) takeBefore(answer, segment, event);
    else if (!segment.branch) markStart(answer, segment);
    segment.prefill.total = event.prompt.length;
    HANDLERS.queued(answer, segment, event);
  },

  queued(_answer, segment, { position }) {
    segment.position = position;
    segment.state = position > 0 ? "queued" : "prefill";
  },

  prefill(answer, segment, event) {
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
    addExperts(segment, event.experts);
    if (!segment.branch) segment.promptReused = event.reused;
    for (const stats of event.stats ?? []) {
      if (stats.position >= segment.prompt.length) takeStats(answer, segment, stats);
      else {
        countPrompt(answer, segment, stats);
        segment.promptStats[stats.position] = stats;
      }
    }
  },

  token(answer, segment, event) {
    segment.state = "writing";
    segment.kvBlocks = event.kv_blocks;
    addExperts(segment, event.experts);
    const number = (segment.params.first_index ?? 0) + event.index;
    answer.tokens.push(Object.assign(event, { segment, place: segment.nTokens, number }));
    countToken(answer, event);
    segment.nTokens += 1;
  },

  updated(answer, segment, event) {
    const changes = differences(segment.params, event.params);
    if (segment.capture !== event.capture) {
      changes.push({ name: "capture", from: segment.capture, to: event.capture });
    }
    if (event.reach && !same(segment.reach, event.reach)) takeReach(segment, event, changes);
    segment.params = event.params;
    segment.capture = event.capture;
    if (changes.length) addMark(answer, segment, segment.first + event.index, changes);
  },

  done(_answer, segment, event) {
    segment.state = "done";
    segment.reason = event.reason;
    segment.message = event.message ?? "";
    segment.timings = event.timings;
  },
};

/** What a run acts with on a text of so many tokens: from its beginning on, or after what acted before. */
function reachedBy(request, nPrompt) {
  const { reach = {}, reached } = request ?? {};
  return reached ? changedFrom(reached, nPrompt - 1, reach) : atStart(reach, nPrompt);
}

function addExperts(segment, used) {
  if (!used) return;
  const sum = segment.experts ?? { found: 0, brought: 0, n_bytes: 0 };
  for (const name of ["found", "brought", "n_bytes"]) sum[name] += used[name];
  segment.experts = sum;
}

/** Another setting inside the model acts from the row on that chooses the token. */
function takeReach(segment, { index, reach }, changes) {
  const { prompt } = segment.events[0];
  changes.push({ name: "reach", from: segment.reach, to: reach });
  segment.reach = reach;
  segment.reached = changedFrom(segment.reached, prompt.length + index - 1, reach);
}

/** A run that is reached into from its beginning says so there. */
function markStart(answer, segment) {
  if (!segment.reached.length) return;
  const told = [{ name: "reach", from: {}, to: segment.reach }];
  answer.marks.push({ segment, index: segment.first, changes: [], told });
}
