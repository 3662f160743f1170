// @ts-nocheck
// Log of a generation's messages, from which a page that missed some is sent them again
// (app/ws/sessions.py).

import { InvalidRequest } from "./shared/errors.js";

/** Events of a generation whose statistics are kept; those of older ones go first, text never. */
const MAX_STATS = 1000;

/** Milliseconds since a request came; `prepared`: when its prompt was tokens. */
export class RequestClock {
  constructor() {
    this.began = performance.now();
    this.prepared = null;
  }

  now() {
    return performance.now() - this.began;
  }
}

export class GenerationLog {
  /**
   * `texts`: what each of the last tokens of the prompt adds to a text that is continued;
   * `dropped`: indexes of messages that were left out. `post` sends a message to the page once it
   * follows; `onDone` is called after the last event.
   */
  constructor(id, { clock, texts, dropped, post, onDone }) {
    Object.assign(this, { id, clock, texts, dropped, post, onDone });
    this.messages = [];
    this.withStats = [];
    this.follows = false;
    this.run = null;
    this.finishedAt = null;
  }

  get done() {
    return this.finishedAt !== null;
  }

  /** Take an event of the engine. */
  onEvent(event) {
    const first = !this.messages.length && this.clock.prepared !== null;
    const message = {
      type: "event",
      id: this.id,
      seq: this.messages.length + 1,
      event: this.completed(event),
      at: this.clock.now(),
      ...(first && { prepared: this.clock.prepared }),
    };
    this.messages.push(message);
    if (this.follows) this.post(message);
    if (event.stats?.position !== undefined || event.stats?.length) this.keepStats(message);
    if (event.type !== "done") return;
    this.finishedAt = performance.now();
    this.onDone();
  }

  /** Return an event as the page gets it: seeds are numbers in JSON. */
  completed(event) {
    const found =
      event.type === "accepted" ? { ...event, texts: this.texts, dropped: this.dropped } : event;
    const seed = found.params?.seed;
    if (typeof seed !== "bigint") return found;
    return { ...found, params: { ...found.params, seed: Number(seed) } };
  }

  keepStats(message) {
    this.withStats.push(message);
    if (this.withStats.length <= MAX_STATS) return;
    const oldest = this.withStats.shift();
    const stats = oldest.event.type === "prefill" ? [] : null;
    this.messages[oldest.seq - 1] = { ...oldest, event: { ...oldest.event, stats } };
  }

  /** Send the messages after `after`, old ones and new. */
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
