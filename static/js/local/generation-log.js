// Log of a generation's messages, from which a page that missed some is sent them again
// (app/ws/sessions.py).

import { InvalidRequest } from "./shared/errors.js";

/** Events of a generation whose statistics are kept; those of older ones go first, text never. */
const MAX_STATS = 1000;

/** Milliseconds since a request came; `prepared`: when its prompt was tokens. */
export class RequestClock {
  constructor() {
    this.began = performance.now();
    /** @type {number | null} */
    this.prepared = null;
  }

  now() {
    return performance.now() - this.began;
  }
}

/** A run whose settings can change (run-queue.js). @typedef {import("./run-queue.js").QueuedRun} QueuedRun */

export class GenerationLog {
  /**
   * `texts`: what each of the last tokens of the prompt adds to a text that is continued;
   * `dropped`: indexes of messages that were left out. `post` sends a message to the page once it
   * follows; `onDone` is called after the last event.
   *
   * @param {string} id
   * @param {{
   *   clock: RequestClock, texts: string[], dropped: number[],
   *   post: (message: ToPage.Generation) => void, onDone: () => void,
   * }} parts
   */
  constructor(id, { clock, texts, dropped, post, onDone }) {
    this.id = id;
    this.clock = clock;
    this.texts = texts;
    this.dropped = dropped;
    this.post = post;
    this.onDone = onDone;
    /** @type {ToPage.Generation[]} */
    this.messages = [];
    /** `seq` of the messages that have statistics. @type {number[]} */
    this.withStats = [];
    this.follows = false;
    /** @type {QueuedRun | null} */
    this.run = null;
    /** @type {number | null} */
    this.finishedAt = null;
  }

  get done() {
    return this.finishedAt !== null;
  }

  /** Take an event of the engine. @param {EngineEvent} event */
  onEvent(event) {
    const first = !this.messages.length && this.clock.prepared !== null;
    const { texts, dropped } = this;
    /** @type {ToPage.Generation} */
    const message = {
      type: "event",
      id: this.id,
      seq: this.messages.length + 1,
      event: event.type === "accepted" ? { ...event, texts, dropped } : event,
      at: this.clock.now(),
      ...(first && { prepared: this.clock.prepared }),
    };
    this.messages.push(message);
    if (this.follows) this.post(message);
    if (hasStats(event)) this.keepStats(message.seq);
    if (event.type !== "done") return;
    this.finishedAt = performance.now();
    this.onDone();
  }

  /**
   * Note that message `seq` has statistics, and drop those of the oldest if they are too many.
   *
   * @param {number} seq
   */
  keepStats(seq) {
    this.withStats.push(seq);
    if (this.withStats.length <= MAX_STATS) return;
    const [oldest] = this.withStats.splice(0, 1);
    const message = this.messages[oldest - 1];
    this.messages[oldest - 1] = { ...message, event: withoutStats(message.event) };
  }

  /** Send the messages after `after`, old ones and new. @param {number} after */
  follow(after) {
    const last = this.messages.length;
    if (!(after >= 0 && after <= last))
      throw new InvalidRequest(
        `after must be from 0 to ${last}, the last seq of this generation, but got ${after}`,
        "after",
      );
    this.follows = true;
    for (const message of this.messages.slice(after)) this.post(message);
  }

  cancel() {
    if (!this.done) this.run?.cancel();
  }

  /** The run, whose settings can change. Throws InvalidRequest if it has ended. */
  get liveRun() {
    if (this.done || !this.run)
      throw new InvalidRequest("this generation has ended; its settings cannot change any more");
    return this.run;
  }
}

/** @param {EngineEvent} event */
const hasStats = (event) =>
  (event.type === "token" && event.stats !== null) || (event.type === "prefill" && event.stats.length > 0);

/** @param {EngineEvent} event @returns {EngineEvent} */
function withoutStats(event) {
  if (event.type === "prefill") return { ...event, stats: [] };
  return event.type === "token" ? { ...event, stats: null } : event;
}
