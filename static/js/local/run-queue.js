// @ts-nocheck
// Runs that share the engine: at most so many at once, the others wait in the order they came. Paused
// ones are not counted: the engine takes their slots when others need them.

import { EngineError } from "./shared/errors.js";
import { told } from "./interventions/encode.js";

/** `timings` of a run that computed nothing. */
export const ZERO_TIMINGS = {
  cache_n: 0,
  prompt_n: 0,
  prompt_ms: 0,
  prompt_per_second: 0,
  predicted_n: 0,
  predicted_ms: 0,
  predicted_per_second: 0,
  queue_ms: 0,
  ttft_ms: 0,
  tpot_ms: 0,
  draft_n: 0,
  draft_n_accepted: 0,
  draft_n_by_position: [],
  draft_n_accepted_by_position: [],
  draft_speedup: 0,
  cache_moved_n: 0,
  draft_ms: 0,
  paced_ms: 0,
};

export class RunQueue {
  /** `limits`: {active, queue, context} of the hello; `piece` returns the text of a token. */
  constructor(engine, piece, { active, queue, context }) {
    Object.assign(this, { engine, piece, active, context });
    this.most = active + Math.floor((queue + 1) / 2);
    this.running = new Set();
    this.waiting = [];
    this.nRuns = 0;
  }

  /**
   * Start a run of {ids, params, capture, updates, interventions}, now or when one ends. Returns it:
   * `update(changes, capture, encoded)` and `cancel()`. Throws what the engine throws, and when too
   * many wait.
   */
  submit(request, onEvent) {
    if (this.running.size + this.waiting.length >= this.most)
      throw new EngineError(
        "queue_full",
        `you already have ${this.most} generations running or waiting, the limit for one browser or ` +
          "program; stop one, or wait until one ends",
      );
    this.nRuns += 1;
    const run = new QueuedRun(this, { ...request, run: this.nRuns }, onEvent);
    if (!this.waiting.length && this.nWriting < this.active) run.start();
    else {
      this.waiting.push(run);
      run.wait(this.waiting.length);
    }
    return run;
  }

  /** Numbers of the runs that wait, in their order. */
  get waitingRuns() {
    return this.waiting.map(({ request }) => request.run);
  }

  /** How many runs the engine has that are not paused. */
  get nWriting() {
    return [...this.running].filter(({ run }) => !run?.paused).length;
  }

  /** A run has ended. */
  onEnd(run) {
    this.running.delete(run);
    this.waiting = this.waiting.filter((other) => other !== run);
    this.startWaiting();
  }

  /** Let the next one begin if fewer write now, and tell the others their places. */
  startWaiting() {
    while (this.waiting.length && this.nWriting < this.active) {
      const next = this.waiting.shift();
      next.moveTo(0);
      next.startOrFail();
    }
    this.waiting.forEach((other, i) => other.moveTo(i + 1));
  }
}

class QueuedRun {
  constructor(queue, request, onEvent) {
    Object.assign(this, { queue, request, onEvent });
    this.run = null;
    this.isAccepted = false;
    this.isCancelled = false;
    this.position = 0;
    this.since = performance.now();
  }

  start() {
    this.queue.running.add(this);
    try {
      this.run = this.queue.engine.submit({
        ...this.request,
        onEvent: (event) => this.onEngineEvent(event),
      });
    } catch (error) {
      this.queue.running.delete(this);
      throw error;
    }
    if (this.isCancelled) this.run.cancel();
  }

  startOrFail() {
    try {
      this.start();
    } catch (error) {
      this.end("error", error.message);
    }
  }

  onEngineEvent(event) {
    if (event.type === "accepted" && this.isAccepted) return; // told while it waited
    this.isAccepted ||= event.type === "accepted";
    this.onEvent(event);
    if (this.run?.paused) this.queue.startWaiting();
    if (event.type === "done") this.queue.onEnd(this);
  }

  /** Tell that the run is accepted and has this place in the queue. */
  wait(position) {
    const { ids, params, capture, run } = this.request;
    const prompt = ids.map((id) => ({ id, text: this.queue.piece(id) }));
    this.isAccepted = true;
    this.position = position;
    this.onEvent({
      type: "accepted",
      prompt,
      params,
      capture,
      position,
      context: this.queue.context,
      run,
    });
  }

  /** Tell the place of a run that waits, if it changed. */
  moveTo(position) {
    if (position !== this.position) this.onEvent({ type: "queued", position });
    this.position = position;
  }

  /** As `update` of gpu/run.js. A run that waits has not written anything that could be paused. */
  update(changes, capture, encoded = null, pace = null) {
    if (this.run) return this.run.update(changes, capture, encoded, pace);
    const { request } = this;
    if (encoded) request.interventions.changeWaiting(encoded);
    const params = { ...request.params, ...changes };
    const rate = pace?.pace === undefined ? request.pace : pace.pace;
    this.request = { ...request, params, capture: capture ?? request.capture, pace: rate };
    return this.onEvent({
      type: "updated",
      index: 0,
      params,
      capture: this.request.capture,
      ...(encoded && { reach: told(encoded.requested) }),
      ...(rate !== request.pace && { pace: rate }),
    });
  }

  cancel() {
    this.isCancelled = true;
    if (this.run) this.run.cancel();
    else if (this.queue.waiting.includes(this)) this.end("cancelled");
  }

  /** End a run that the engine does not have. */
  end(reason, message = "") {
    const timings = { ...ZERO_TIMINGS, queue_ms: performance.now() - this.since };
    const prompt_tokens = this.request.ids.length;
    this.onEvent({ type: "done", reason, prompt_tokens, completion_tokens: 0, timings, message });
    this.queue.onEnd(this);
  }
}
