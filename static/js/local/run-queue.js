// Runs that share the engine: at most so many at once, the others wait in the order they came. Paused
// ones are not counted: the engine takes their slots when others need them.

import { EngineError, messageOf } from "./shared/errors.js";
import { toldParams } from "./gpu/run-events.js";
import { RunPace } from "./gpu/run-pace.js";
import { checkNoNewPatch, told } from "./interventions/encode.js";

/**
 * @typedef {import("./gpu/run.js").Run} Run
 * @typedef {import("./gpu/run-pace.js").PaceChange} PaceChange
 * @typedef {import("./gpu/sequence.js").SequenceRequest} SequenceRequest
 * @typedef {import("./interventions/encode.js").EncodedInterventions} EncodedInterventions
 * @typedef {import("./interventions/resolved.js").RunInterventions} RunInterventions
 * @typedef {Omit<SequenceRequest, "run" | "asked" | "onEvent"> & {interventions: RunInterventions}} QueuedRequest
 * @typedef {{submit(request: SequenceRequest): Run}} RunEngine
 */

/** `timings` of a run that computed nothing. @type {ToPage.Timings} */
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
  /**
   * `limits`: of the hello; `piece` returns the text of a token.
   *
   * @param {RunEngine} engine
   * @param {(id: number) => string} piece
   * @param {Pick<ToPage.PageLimits, "active" | "queue" | "context">} limits
   */
  constructor(engine, piece, { active, queue, context }) {
    this.engine = engine;
    this.piece = piece;
    this.active = active;
    this.context = context;
    this.most = active + Math.floor((queue + 1) / 2);
    /** @type {Set<QueuedRun>} */
    this.running = new Set();
    /** @type {QueuedRun[]} */
    this.waiting = [];
    this.nRuns = 0;
  }

  /**
   * Start a run, now or when one ends. Throws what the engine throws, and when too many wait.
   *
   * @param {QueuedRequest} request
   * @param {(event: EngineEvent) => void} onEvent
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

  /** A run has ended. @param {QueuedRun} run */
  onEnd(run) {
    this.running.delete(run);
    this.waiting = this.waiting.filter((other) => other !== run);
    this.startWaiting();
  }

  /** Let the next one begin if fewer write now, and tell the others their places. */
  startWaiting() {
    while (this.nWriting < this.active) {
      const next = this.waiting.shift();
      if (!next) break;
      next.moveTo(0);
      next.startOrFail();
    }
    this.waiting.forEach((other, i) => other.moveTo(i + 1));
  }
}

export class QueuedRun {
  /**
   * @param {RunQueue} queue
   * @param {QueuedRequest & {run: number}} request
   * @param {(event: EngineEvent) => void} onEvent
   */
  constructor(queue, request, onEvent) {
    this.queue = queue;
    this.request = request;
    this.onEvent = onEvent;
    /** @type {Run | null} */
    this.run = null;
    this.isAccepted = false;
    this.isCancelled = false;
    this.position = 0;
    this.since = performance.now();
    /** Until the engine has the run: it is paused or not, and has steps to write. */
    this.pace = new RunPace(request.pace);
  }

  start() {
    this.queue.running.add(this);
    try {
      this.run = this.queue.engine.submit({
        ...this.request,
        pace: this.pace.rate,
        asked: this.since,
        onEvent: (event) => this.onEngineEvent(event),
      });
    } catch (error) {
      this.queue.running.delete(this);
      throw error;
    }
    if (this.isCancelled) this.run.cancel();
    else if (this.pace.rate === 0 && this.pace.end && this.queue.running.has(this))
      this.run.update(null, null, null, { steps: this.pace.end });
  }

  startOrFail() {
    try {
      this.start();
    } catch (error) {
      this.end("error", messageOf(error));
    }
  }

  /** @param {EngineEvent} event */
  onEngineEvent(event) {
    if (event.type === "accepted" && this.isAccepted) return; // told while it waited
    this.isAccepted ||= event.type === "accepted";
    this.onEvent(event);
    if (this.run?.paused) this.queue.startWaiting();
    if (event.type === "done") this.queue.onEnd(this);
  }

  /** Tell that the run is accepted and has this place in the queue. @param {number} position */
  wait(position) {
    const { ids, params, capture, run } = this.request;
    const prompt = ids.map((id) => ({ id, text: this.queue.piece(id) }));
    this.isAccepted = true;
    this.position = position;
    this.onEvent({
      type: "accepted",
      prompt,
      params: toldParams(params),
      capture,
      position,
      context: this.queue.context,
      texts: [],
      dropped: [],
      run,
    });
  }

  /** Tell the place of a run that waits, if it changed. @param {number} position */
  moveTo(position) {
    if (position !== this.position) this.onEvent({ type: "queued", position });
    this.position = position;
  }

  /**
   * As `update` of gpu/run.js. A run that waits has not written anything: it has no preview.
   *
   * @param {Record<string, number | null>} changes
   * @param {boolean | null} capture
   * @param {EncodedInterventions | null} [encoded]
   * @param {PaceChange | null} [pace]
   */
  update(changes, capture, encoded = null, pace = null) {
    if (this.run) return this.run.update(changes, capture, encoded, pace);
    const { request } = this;
    const { rate } = this.pace;
    if (encoded) checkNoNewPatch(request.interventions.requested, encoded.requested);
    if (pace) this.pace.change(pace, 0);
    if (encoded) request.interventions.changeWaiting(encoded);
    const params = { ...request.params, ...changes };
    this.request = { ...request, params, capture: capture ?? request.capture };
    const isNewPace = this.pace.rate !== rate;
    const hasSettings = Object.keys(changes).length > 0 || capture !== null || encoded !== null;
    if (pace && !hasSettings && !isNewPace) return undefined;
    return this.onEvent({
      type: "updated",
      index: 0,
      params: toldParams(params),
      capture: this.request.capture,
      ...(encoded && { reach: told(encoded.requested) }),
      ...(isNewPace && { pace: this.pace.rate }),
    });
  }

  cancel() {
    this.isCancelled = true;
    if (this.run) this.run.cancel();
    else if (this.queue.waiting.includes(this)) this.end("cancelled");
  }

  /**
   * End a run that the engine does not have.
   *
   * @param {ToPage.Done["reason"]} reason
   * @param {string} [message]
   */
  end(reason, message = "") {
    const timings = { ...ZERO_TIMINGS, queue_ms: performance.now() - this.since };
    const prompt_tokens = this.request.ids.length;
    this.onEvent({ type: "done", reason, prompt_tokens, completion_tokens: 0, timings, message });
    this.queue.onEnd(this);
  }
}
