// State of one run: what was submitted to the device, and what was read back.
//
// The engine submits ahead of what it reads. Samples past a stop are discarded.

import { told as toldInterventions, NONE_ENCODED } from "../interventions/encode.js";
import { RunInterventions } from "../interventions/resolved.js";
import { CachedText } from "./cached-text.js";
import { RunEvents, toldParams } from "./run-events.js";
import { RunPace } from "./run-pace.js";
import { FROM_GPU } from "./step-buffer.js";

const NOT_A_NUMBER =
  "the model's output is not a number: its activations or weights are too large for how they are " +
  "stored; choose an export with dtype f32";

/**
 * Settings that change, and a scheduled change.
 *
 * @typedef {import("../interventions/resolved.js").ResolvedInterventions} ResolvedInterventions
 * @typedef {import("./results.js").DrawnSample} DrawnSample
 * @typedef {import("./results.js").StepResult} StepResult
 * @typedef {Read.SamplingUpdate | Record<string, number | null>} Changes
 * @typedef {{index: number, params: Changes, capture: boolean | null}} ScheduledUpdate
 */

/**
 * A request: `interventions` has those of the updates, too; `run` is its number; `pace`: as in
 * gpu/request.py; `asked`: when it came, by performance.now(), now if it is left out.
 *
 * @typedef {{
 *   ids: number[], params: SamplerParams, capture: boolean, updates?: ScheduledUpdate[],
 *   interventions?: RunInterventions, run?: number, pace?: number | null, asked?: number,
 *   onEvent: (event: EngineEvent) => void,
 * }} SequenceRequest
 */

/**
 * A sample that was read, of a row of its step.
 *
 * @typedef {{sample: DrawnSample, row: number, result: StepResult}} ReadSample
 */

export class Sequence {
  /**
   * @param {SequenceRequest} request
   * @param {TokenTexts & {eosIds: number[]}} text
   * @param {Exported.PlanLimits} limits
   */
  constructor(request, text, limits) {
    const { ids, params, capture, updates = [], interventions, run = 0, pace, asked, onEvent } = request;
    this.pace = new RunPace(pace);
    /** A preview. @type {ReadSample | null} */
    this.held = null;
    this.nDropped = 0; // previews in flight that are discarded when they are read
    /** Whether the device's penalties count other tokens than those of the text. */
    this.textIsStale = false;
    this.prompt = ids;
    this.ids = [...ids];
    this.params = params;
    this.capture = capture;
    this.interventions = interventions ?? new RunInterventions(NONE_ENCODED, ids.length);
    this.run = run;
    this.limits = limits;
    this.text = text;
    this.slot = -1;
    this.order = 0; // of arrival, set by the engine
    this.nReused = 0;
    this.nKnown = ids.length; // ids to prefill: the prompt, or all before it was preempted
    this.nPrefilled = 0; // of these, found or submitted
    this.nPromptSubmitted = 0; // of the prompt, found or submitted
    this.isPreempted = false;
    this.nSubmitted = 0; // samples submitted
    this.nWritten = 0; // samples read
    this.nDue = 0; // see gpu/engine/run_text.py
    this.finished = false;
    this.keepsCache = true; // others may use its keys and values
    this.updates = updates;
    this.nApplied = 0;
    this.events = new RunEvents(ids, params.stop, text, limits, onEvent);
    if (asked !== undefined) this.events.clock.asked = asked;
  }

  // ---- what to submit

  get prefilling() {
    return this.nPrefilled < this.nKnown;
  }

  /** Position of the row that feeds the next sample. */
  get nextPosition() {
    return this.prompt.length + this.nSubmitted - 1;
  }

  get wantsDecode() {
    const room = this.nSubmitted < this.mostWritten && this.nextPosition < this.limits.context;
    const mustSettle = this.pace.limits && !this.settled;
    return !this.finished && !this.prefilling && room && this.pace.isDue && !mustSettle;
  }

  /** Tokens after which the text ends, by the settings in force. */
  get mostWritten() {
    return Math.max(this.params.max_tokens, this.nDue);
  }

  /** Whether all submitted samples were read. */
  get settled() {
    return this.nSubmitted === this.nWritten;
  }

  /** Whether nothing will be written until somebody asks for it. */
  get paused() {
    return !this.pace.mayWrite(this.nWritten);
  }

  /** Whether the last sample that was submitted is a preview (gpu/engine/sequence.py). */
  get previewing() {
    return this.nSubmitted > this.nWritten && !this.pace.mayWrite(this.nSubmitted - 1);
  }

  /** The first `n` tokens and what acts on them. @param {number} n */
  upTo(n) {
    return new CachedText(this.ids.slice(0, n), this.interventions.schedule.spans);
  }

  /** The tokens whose keys and values are on the device or on their way, and may be used again. */
  get computed() {
    if (!this.keepsCache) return this.upTo(0);
    const n = this.prefilling || !this.nSubmitted ? this.nPrefilled : this.nextPosition;
    return this.upTo(Math.min(n, this.ids.length - Number(this.previewing)));
  }

  /** Number of the last ids that count as written, for penalties. */
  get nCounted() {
    return Math.min(this.ids.length, this.params.first_index + this.nWritten);
  }

  /** @param {number} slot @param {number} reused */
  start(slot, reused) {
    this.slot = slot;
    this.nPrefilled = reused;
    this.nKnown = this.ids.length;
    if (this.isPreempted) {
      this.events.movedTo(0); // its prompt is not sent again
      return;
    }
    this.nReused = this.nPromptSubmitted = this.events.nPromptSent = reused;
    this.events.clock.start();
  }

  /** Forget what was computed. All ids are prefilled when the run starts again. */
  preempt() {
    this.dropPreview();
    if (this.paused) this.events.clock.wait();
    this.isPreempted = true;
    this.slot = -1;
    this.nPrefilled = 0;
  }

  /** What acts on the row at `position`. @param {number} position */
  activeAt(position) {
    return this.interventions.schedule.at(position);
  }

  /**
   * Number of known ids to prefill next that are under the same interventions, at most `most`.
   *
   * @param {number} most
   */
  chunkSize(most) {
    const first = this.nPrefilled;
    const end = first + Math.min(most, this.nKnown - first);
    return this.interventions.schedule.nextChange(first, end) - first;
  }

  /** Rows of the next `n` known ids. @param {number} n */
  prefillRows(n) {
    const first = this.nPrefilled;
    this.nPrefilled += n;
    const submitted = Math.min(this.nPrefilled, this.prompt.length);
    this.nPromptSubmitted = Math.max(this.nPromptSubmitted, submitted);
    return this.ids
      .slice(first, first + n)
      .map((token, i) => ({ slot: this.slot, position: first + i, token }));
  }

  decodeRow() {
    const token = this.settled ? this.ids[this.ids.length - 1] : FROM_GPU;
    return { slot: this.slot, position: this.nextPosition, token };
  }

  /**
   * The draw of the next token, after row `row` of the step.
   *
   * @param {number} row
   * @returns {import("./step-buffer.js").StepSample}
   */
  sample(row) {
    if (this.pace.rate) this.events.clock.goOn(this.pace.dueAt);
    this.pace.submitted();
    return { row, slot: this.slot, index: this.nSubmitted++, params: this.params };
  }

  /** Apply the scheduled updates of the next token to submit. */
  applyScheduledUpdates() {
    if (this.previewing) return; // it may be submitted again before
    while (!this.finished) {
      const n = this.nApplied;
      const next = this.updates.at(n);
      if (!next || next.index > this.nSubmitted) return;
      this.nApplied += 1;
      this.update(next.params, next.capture, this.interventions.ofUpdate(n));
    }
  }

  // ---- what came back

  /** Send that the run waits; `position` other runs are before it. @param {number} position */
  accepted(position) {
    this.events.accepted(position, this.params, this.capture, this.run);
  }

  /**
   * Handle a finished chunk: ids `first` … `first + n − 1` were rows `row` … of a step.
   *
   * @param {number} first
   * @param {number} n
   * @param {number} row
   * @param {StepResult} result
   */
  chunkRead(first, n, row, result) {
    if (!this.finished) this.events.prefilled({ first, n, row }, result, this.nReused);
  }

  /** @param {DrawnSample} sample @param {number} row @param {StepResult} result */
  sampleRead(sample, row, result) {
    if (this.nDropped) this.nDropped -= 1;
    else if (this.previewing && Number.isFinite(sample.logprob)) this.hold(sample, row, result);
    else this.write(sample, row, result);
  }

  /**
   * Hold a preview, and tell what the next token will be drawn from.
   *
   * @param {DrawnSample} sample
   * @param {number} row
   * @param {StepResult} result
   */
  hold(sample, row, result) {
    if (this.finished) return;
    this.held = { sample, row, result };
    this.events.clock.wait();
    this.events.preview(sample, this.nWritten);
  }

  /** Have the step of a preview run again. */
  dropPreview() {
    if (!this.previewing) return;
    this.nDropped += Number(!this.held);
    this.held = null;
    this.nSubmitted = this.nWritten;
    this.textIsStale = true;
  }

  /** @param {DrawnSample} sample @param {number} row @param {StepResult} result */
  write(sample, row, result) {
    if (this.finished) return;
    if (!Number.isFinite(sample.logprob)) {
      this.keepsCache = false;
      this.end("error", NOT_A_NUMBER);
      return;
    }
    const index = this.nWritten++;
    this.ids.push(sample.id);
    const eos = this.text.eosIds.includes(sample.id) && !this.params.ignore_eos;
    const position = this.prompt.length + index - 1;
    const token = this.events.token(sample, { index, position, row, eos }, result);
    if (eos) {
      this.events.flush();
      this.events.send(token);
      this.finish("eos");
      return;
    }
    const reason = this.endAfter(position);
    if (this.events.show(token, reason !== null)) this.finish("stop");
    else if (reason) this.end(reason);
    if (this.pace.rate) this.events.clock.wait();
  }

  /** @param {number} position */
  endAfter(position) {
    if (this.nWritten >= this.mostWritten) return "length";
    return position + 1 >= this.limits.context ? "context" : null;
  }

  /**
   * Apply changes to the tokens not submitted yet, previews among them; null: as before.
   *
   * @param {Changes | null} changes
   * @param {boolean | null} capture
   * @param {ResolvedInterventions | null} [resolved]
   * @param {import("./run-pace.js").PaceChange | null} [pace]
   */
  update(changes, capture, resolved = null, pace = null) {
    const given = Object.entries(changes ?? {}).filter(([, value]) => value !== null);
    const hasSettings = given.length > 0 || resolved !== null || (capture ?? null) !== null;
    if (hasSettings) this.dropPreview();
    const { rate } = this.pace;
    const index = this.nSubmitted - Number(this.previewing);
    if (pace) this.pace.change(pace, index);
    if (resolved) this.interventions.change(this.prompt.length + index - 1, resolved);
    this.params = { ...this.params, ...Object.fromEntries(given) };
    this.nDue = Math.max(this.nDue, index);
    this.capture = capture ?? this.capture;
    const { params } = this;
    const isNewPace = this.pace.rate !== rate;
    if (isNewPace) this.events.clock.goOn();
    if (hasSettings || !pace || isNewPace)
      this.events.send({
        type: "updated",
        index,
        params: toldParams(params),
        capture: this.capture,
        ...(resolved && { reach: toldInterventions(resolved.requested) }),
        ...(isNewPace && { pace: this.pace.rate }),
      });
    if (this.nWritten >= this.mostWritten && !this.finished) this.end("length");
    else if (pace && !this.paused) this.goOn();
  }

  /** Write the preview, which may be done now. */
  goOn() {
    this.events.clock.goOn();
    const { held } = this;
    this.held = null;
    if (held) this.write(held.sample, held.row, held.result);
    this.applyScheduledUpdates();
  }

  cancel() {
    this.end("cancelled");
  }

  /** End the run; text held back for a stop string is shown. @param {ToPage.Done["reason"]} reason @param {string} [message] */
  end(reason, message = "") {
    if (this.finished) return;
    this.events.flush();
    this.finish(reason, message);
  }

  /** @param {ToPage.Done["reason"]} reason @param {string} [message] */
  finish(reason, message = "") {
    if (this.finished) return;
    this.finished = true;
    const nComputed = this.nPromptSubmitted - this.nReused;
    this.events.send({
      type: "done",
      reason,
      prompt_tokens: this.prompt.length,
      completion_tokens: this.nWritten,
      timings: this.events.clock.timings(this.nReused, nComputed, this.nWritten),
      message,
    });
  }
}
