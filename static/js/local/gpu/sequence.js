// State of one run: what was submitted to the device, what was read back, and the events it told.
//
// The engine submits ahead of what it reads. Samples past a stop are discarded. The events are those
// of gpu/events.py.

import { told as toldInterventions, NONE_ENCODED } from "../interventions/encode.js";
import { RunInterventions } from "../interventions/resolved.js";
import { CachedText } from "./cached-text.js";
import { layerTimes } from "./results.js";
import { RunClock } from "./run-clock.js";
import { RunPace } from "./run-pace.js";
import { FROM_GPU } from "./step-buffer.js";
import { StopMatcher } from "../text/stop-strings.js";

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
 * gpu/request.py.
 *
 * @typedef {{
 *   ids: number[], params: SamplerParams, capture: boolean, updates?: ScheduledUpdate[],
 *   interventions?: RunInterventions, run?: number, pace?: number | null,
 *   onEvent: (event: EngineEvent) => void,
 * }} SequenceRequest
 */

/** A row of a step, and its position. @typedef {[row: number, position: number]} RowPlace */

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
    const { ids, params, capture, updates = [], interventions, run = 0, pace, onEvent } = request;
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
    this.onEvent = onEvent;
    this.slot = -1;
    this.order = 0; // of arrival, set by the engine
    this.place = 0; // in the queue, as it was told
    this.nReused = 0;
    this.nKnown = ids.length; // ids to prefill: the prompt, or all before it was preempted
    this.nPrefilled = 0; // of these, found or submitted
    this.nPromptSubmitted = 0; // of the prompt, found or submitted
    this.nPromptTold = 0; // of these, told
    this.isPreempted = false;
    this.nSubmitted = 0; // samples submitted
    this.nWritten = 0; // samples read
    this.finished = false;
    this.updates = updates;
    this.nApplied = 0;
    this.stream = text.decodeStream(ids);
    /** @type {StopMatcher<ToPage.Token>} */
    this.matcher = new StopMatcher(params.stop);
    this.clock = new RunClock();
    /** Of the last step whose layers were timed. @type {import("./results.js").LayerTimes | null} */
    this.layerTimes = null;
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
    const room = this.nSubmitted < this.params.max_tokens && this.nextPosition < this.limits.context;
    const mustSettle = this.pace.limits && !this.settled;
    return !this.finished && !this.prefilling && room && this.pace.isDue && !mustSettle;
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

  /** The tokens whose keys and values are on the device or on their way. */
  get computed() {
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
      this.queueMoved(0); // its prompt is not told again
      return;
    }
    this.nReused = this.nPromptSubmitted = this.nPromptTold = reused;
    this.clock.start();
  }

  /** Forget what was computed. All ids are prefilled when the run starts again. */
  preempt() {
    this.dropPreview();
    if (this.paused) this.clock.wait();
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
    if (this.pace.rate) this.clock.goOn(this.pace.dueAt);
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

  /** @param {number} position */
  accepted(position) {
    this.place = position;
    const { piece } = this.text;
    this.emit({
      type: "accepted",
      prompt: this.prompt.map((id) => ({ id, text: piece(id) })),
      params: toldParams(this.params),
      capture: this.capture,
      position,
      context: this.limits.context,
      texts: [],
      dropped: [],
      run: this.run,
    });
  }

  /** @param {number} position */
  queueMoved(position) {
    if (position === this.place) return;
    this.place = position;
    this.emit({ type: "queued", position });
  }

  /**
   * Ids `first` … `first + n − 1` were rows `row` … of a step. Those of the prompt are told once.
   *
   * @param {number} first
   * @param {number} n
   * @param {number} row
   * @param {StepResult} result
   */
  chunkRead(first, n, row, result) {
    const from = Math.max(first, this.nPromptTold);
    const end = Math.min(first + n, this.prompt.length);
    if (this.finished || from >= end) return;
    this.nPromptTold = end;
    /** @type {RowPlace[]} */
    const rows = Array.from({ length: end - from }, (_, i) => [row + from - first + i, from + i]);
    this.emit({
      type: "prefill",
      done: end,
      total: this.prompt.length,
      reused: this.nReused,
      ms: this.clock.sinceStart(),
      gpu_ms: result.gpu,
      kv_blocks: this.blocksFor(end),
      stats: this.stats(rows, end - 1, result) ?? [],
      experts: null,
    });
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
    this.clock.wait();
    const { n_kept, mass } = sample;
    this.emit({ type: "preview", index: this.nWritten, candidates: this.named(sample), n_kept, mass });
  }

  /** Have the step of a preview run again. */
  dropPreview() {
    if (!this.previewing) return;
    this.nDropped += Number(!this.held);
    this.held = null;
    this.nSubmitted = this.nWritten;
    this.textIsStale = true;
  }

  /** @param {DrawnSample} sample */
  named({ candidates }) {
    return candidates.map((each) => ({ ...each, text: this.text.piece(each.id) }));
  }

  /** @param {DrawnSample} sample @param {number} row @param {StepResult} result */
  write(sample, row, result) {
    if (this.finished) return;
    if (!Number.isFinite(sample.logprob)) {
      this.release(this.matcher.flush());
      this.finish("error", NOT_A_NUMBER);
      return;
    }
    const index = this.nWritten++;
    this.ids.push(sample.id);
    const eos = this.text.eosIds.includes(sample.id) && !this.params.ignore_eos;
    const position = this.prompt.length + index - 1;
    const token = this.token(sample, { index, position, row, eos }, result);
    if (eos) {
      this.release(this.matcher.flush());
      this.emit(token);
      this.finish("eos");
      return;
    }
    const reason = this.endAfter(position);
    const text = this.stream.push(sample.id) + (reason ? this.stream.flush() : "");
    const { released, stopped } = this.matcher.push(token, text);
    this.release(released);
    if (stopped) this.finish("stop");
    else if (reason) {
      this.release(this.matcher.flush());
      this.finish(reason);
    }
    if (this.pace.rate) this.clock.wait();
  }

  /** @param {number} position */
  endAfter(position) {
    if (this.nWritten >= this.params.max_tokens) return "length";
    return position + 1 >= this.limits.context ? "context" : null;
  }

  /**
   * @param {DrawnSample} sample
   * @param {{index: number, position: number, row: number, eos: boolean}} place
   * @param {StepResult} result
   * @returns {ToPage.Token}
   */
  token(sample, { index, position, row, eos }, result) {
    const { id, logprob, probability, rank, n_kept, draw, mass } = sample;
    const stats = this.stats([[row, position]], position, result);
    return {
      type: "token",
      index,
      id,
      text: "",
      logprob,
      probability,
      rank,
      n_kept,
      draw,
      mass,
      candidates: this.named(sample),
      times: {
        ...this.clock.tokenTimes(),
        gpu: result.gpu,
        encode: result.encode,
        wait: result.wait,
        read: result.read,
      },
      kv_blocks: this.blocksFor(position + 1),
      stats: stats && stats[0],
      eos,
      experts: null,
      draft: null,
    };
  }

  /**
   * Return the measurements of rows of a step whose last token is at `last`; null: they were not
   * captured.
   *
   * @param {RowPlace[]} rows
   * @param {number} last
   * @param {StepResult} result
   */
  stats(rows, last, result) {
    const { captured, nRows } = result;
    if (!this.capture || !captured) return null;
    this.layerTimes = layerTimes(result, last) ?? this.layerTimes;
    return rows.map(([row, position]) => captured.row(row, position, nRows, this.layerTimes));
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
    this.capture = capture ?? this.capture;
    const { params } = this;
    const isNewPace = this.pace.rate !== rate;
    if (isNewPace) this.clock.goOn();
    if (hasSettings || !pace || isNewPace)
      this.emit({
        type: "updated",
        index,
        params: toldParams(params),
        capture: this.capture,
        ...(resolved && { reach: toldInterventions(resolved.requested) }),
        ...(isNewPace && { pace: this.pace.rate }),
      });
    if (this.nWritten >= params.max_tokens && !this.finished) {
      this.release(this.matcher.flush());
      this.finish("length");
    } else if (pace && !this.paused) this.goOn();
  }

  /** Write the preview, which may be done now. */
  goOn() {
    this.clock.goOn();
    const { held } = this;
    this.held = null;
    if (held) this.write(held.sample, held.row, held.result);
    this.applyScheduledUpdates();
  }

  /** End the run; text held back for a stop string is shown. */
  cancel() {
    this.end("cancelled");
  }

  /** @param {ToPage.Done["reason"]} reason @param {string} [message] */
  end(reason, message = "") {
    if (this.finished) return;
    this.release(this.matcher.flush());
    this.finish(reason, message);
  }

  /** @param {ToPage.Done["reason"]} reason @param {string} [message] */
  finish(reason, message = "") {
    if (this.finished) return;
    this.finished = true;
    const nComputed = this.nPromptSubmitted - this.nReused;
    this.emit({
      type: "done",
      reason,
      prompt_tokens: this.prompt.length,
      completion_tokens: this.nWritten,
      timings: this.clock.timings(this.nReused, nComputed, this.nWritten),
      message,
    });
  }

  /** @param {[ToPage.Token, string][]} tokens */
  release(tokens) {
    for (const [token, text] of tokens) this.emit({ ...token, text });
  }

  /** @param {EngineEvent} event */
  emit(event) {
    this.onEvent(event);
  }

  /** @param {number} nTokens */
  blocksFor(nTokens) {
    return Math.ceil(nTokens / this.limits.block_tokens);
  }
}

/** Sampling parameters as the server tells them: the seed is a number. @param {SamplerParams} params */
export const toldParams = (params) => ({ ...params, seed: Number(params.seed) });
