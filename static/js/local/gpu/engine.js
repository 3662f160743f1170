// The engine in the browser: loads an export, and runs one or two sequences over its plans.
//
// A step has one row for each writing sequence, and the next chunk of a prompt in the rest. Two steps
// are in flight. The shaders are the server's, so the ids are the same.

import { Buffers } from "./buffers.js";
import { checkPlan } from "./check-plan.js";
import { adapterName, profileFor, requestAdapter, requestDevice, WANTED } from "./device.js";
import { EngineError, messageOf } from "../shared/errors.js";
import { InspectionPasses } from "./inspection-passes.js";
import { ActivationCache, wait } from "../interventions/activation-cache.js";
import { InterventionTables } from "./intervention-tables.js";
import { findRounding } from "./pass-clock.js";
import { PieceQueue } from "./piece-queue.js";
import { Pipelines } from "./pipelines.js";
import { PlanLookup } from "./plan-lookup.js";
import { QuestionQueue } from "./question-queue.js";
import { Recomputer } from "./recompute.js";
import { Run } from "./run.js";
import { Sequence } from "./sequence.js";
import { Slots } from "./slots.js";
import { StepLog } from "./step-log.js";
import { StepQueue } from "./step-queue.js";
import { writeText } from "./text-memory.js";
import { uploadWeights } from "./weights.js";

/** A step of a prompt should take no longer than this, so that the page stays smooth. */
const MAX_STEP_MS = 100;
const FIRST_CHUNK = 32;
const LEAST_CHUNK = 8;

/**
 * What a run has in a step: a chunk of its prompt, and the row whose next token is sampled.
 *
 * @typedef {{first: number, n: number, firstRow: number}} Chunk
 * @typedef {{sequence: Sequence, chunk?: Chunk, sampledRow: number | null}} StepPart
 * @typedef {import("./step-queue.js").Step & {parts: StepPart[]}} EngineStep
 * @typedef {{step: EngineStep, submittedAt: number, result: Promise<import("./results.js").StepResult>}} InFlight
 */

/**
 * How far weights or kernels are.
 *
 * @typedef {{stage: "weights" | "kernels", done: number, total: number}} LoadProgress
 */

/**
 * What an engine says of itself: `adapter` is a name, `features` those of `WANTED` that the device has.
 *
 * @typedef {{
 *   plan: Exported.PlanFile, manifest: ModelManifest, profile: string, limits: Exported.PlanLimits,
 *   adapter: string, features: string[], clockMs: number,
 * }} LocalEngineInfo
 */

export class LocalEngine {
  /**
   * Load a model. `onLost(message)`: the device is gone, and every run has ended.
   *
   * @param {{
   *   files: ModelFiles, text: TokenTexts,
   *   onProgress?: (at: LoadProgress) => void, onLost?: (message: string) => void,
   * }} asked
   */
  static async load({ files, text, onProgress = () => {}, onLost = () => {} }) {
    const adapter = await requestAdapter();
    const profile = profileFor(adapter, files.profiles);
    const { plan: file, manifest } = await files.load(profile);
    const plan = checkPlan(file);
    const device = await requestDevice(adapter, plan.needs);
    const buffers = await Buffers.allocate(device, plan);
    const pipelines = new Pipelines(device, plan, buffers);
    const lookup = new PlanLookup(plan);
    let failed = false; // weights and kernels load side by side, and the others go on a while
    /** @type {(stage: LoadProgress["stage"]) => (done: number, total: number) => void} */
    const tell = (stage) => (done, total) => failed || onProgress({ stage, done, total });
    const [clockMs] = await Promise.all([
      findRounding(device),
      uploadWeights(buffers, files.pieces(), tell("weights")),
      pipelines.compile(firstPlans(lookup, plan.limits, "captured"), tell("kernels")),
    ]).catch((error) => {
      failed = true;
      device.destroy();
      throw error;
    });
    const eosIds = [...new Set([...plan.model.eos_ids, ...files.chat.eos_ids])];
    const interventions = new InterventionTables(buffers, plan);
    const features = WANTED.filter((name) => device.features.has(name));
    const name = adapterName(adapter);
    const parts = { device, plan, buffers, pipelines, lookup, interventions };
    const engine = new LocalEngine(
      { ...parts, queue: new StepQueue(parts) },
      { piece: (id) => text.piece(id), decodeStream: (ids) => text.decodeStream(ids), eosIds },
      { plan, manifest, profile, limits: plan.limits, adapter: name, features, clockMs },
    );
    engine.onLost = onLost;
    pipelines.compile(firstPlans(lookup, plan.limits, "plain")).catch(() => {}); // a step will say it
    return engine;
  }

  /**
   * @param {LoadedParts & {queue: StepQueue}} parts
   * @param {TokenTexts & {eosIds: number[]}} text
   * @param {LocalEngineInfo} info
   */
  constructor(parts, text, info) {
    const { device, buffers, queue, plan, pipelines, lookup } = parts;
    this.device = device;
    this.buffers = buffers;
    this.plan = plan;
    this.limits = plan.limits;
    this.text = text;
    this.info = info;
    this.queue = queue;
    this.slots = new Slots(plan);
    this.questions = new QuestionQueue();
    this.steps = new StepLog();
    /**
     * Returns the numbers of runs queued outside this engine, which are not submitted yet.
     *
     * @type {() => number[]}
     */
    this.alsoWaiting = () => [];
    /** What runs wait for. @type {PieceQueue<void>} */
    this.background = new PieceQueue();
    this.passes = new InspectionPasses(parts);
    /** Computes rows again, for instruments. */
    this.recomputer = new Recomputer({
      passes: this.passes,
      slots: this.slots,
      texts: () => this.texts(),
      cover: (slot, position) => this.coverBetweenSteps(slot, position),
      isIdle: () => !this.isWriting,
      maxRows: plan.limits.max_rows,
    });
    /** Resolves interventions. */
    this.activations = new ActivationCache(this.recomputer, (acting) =>
      pipelines.compile(firstPlans(lookup, plan.limits, "plain", acting)),
    );
    this.nRuns = 0;
    /**
     * The first run that waits, after one gave blocks back, until some may be free or a run changes.
     *
     * @type {Sequence | null}
     */
    this.lacksBlocks = null;
    /** @type {Sequence[]} */
    this.waiting = [];
    /** @type {Sequence[]} */
    this.active = [];
    /** @type {InFlight[]} */
    this.inFlight = [];
    this.chunk = FIRST_CHUNK;
    this.lastRead = 0;
    this.running = false;
    this.isAsked = false; // to look again for something to do
    this.timer = 0;
    /** Why the device cannot be used any more. @type {string | null} */
    this.lost = null;
    /** @type {(message: string) => void} */
    this.onLost = () => {};
    device.lost.then(({ reason, message }) => {
      if (reason !== "destroyed") this.fail(`the GPU was lost: ${message || "no reason was given"}`);
    });
    // WebGPU leaves out what is not valid, and the numbers after it would be wrong.
    device.addEventListener("uncapturederror", ({ error }) => this.fail(refusalOf(error)));
  }

  /** Start a run. @param {import("./sequence.js").SequenceRequest} request */
  submit(request) {
    const sequence = new Sequence(request, this.text, this.limits);
    const run = new Run(
      sequence,
      this.activations,
      (pieces) => this.work(pieces),
      () => {
        this.lacksBlocks = null;
        this.run();
      },
    );
    if (this.lost) {
      sequence.end("error", this.lost);
      return run;
    }
    sequence.order = this.nRuns++;
    this.waiting.push(sequence);
    sequence.accepted(this.place(this.inTurn.indexOf(sequence) + 1));
    if (!sequence.interventions.ready) this.work(this.resolve(sequence));
    this.run();
    return run;
  }

  /**
   * How many runs must end before the `n`-th that waits, from 1, starts; 0: it starts now.
   *
   * @param {number} n
   */
  place(n) {
    if (this.lacksBlocks && this.waiting.includes(this.lacksBlocks)) return n;
    return Math.max(0, n - (this.limits.slots - this.active.filter(({ paused }) => !paused).length));
  }

  /** The runs that wait, in the order in which they start: paused ones after all others. */
  get inTurn() {
    return this.waiting.toSorted((a, b) => Number(a.paused) - Number(b.paused) || a.order - b.order);
  }

  /** Whether any run has something to compute now or in a while: one that is paused has its preview first. */
  get isWriting() {
    return this.active.some(({ finished, paused, held }) => !finished && !(paused && held));
  }

  /** Have an async generator worked off between steps. @param {Pieces<void>} pieces */
  work(pieces) {
    this.background.add(pieces).catch(() => {}); // the device is lost, which every run is told
    this.run();
  }

  /**
   * Resolves to what `pieces` returns, an async generator that uses `recomputer`. Runs and questions
   * share the GPU's time about equally.
   *
   * @param {Pieces<InspectionAnswer>} pieces
   */
  ask(pieces) {
    if (this.lost) return Promise.reject(new EngineError("unavailable", this.lost));
    const answer = this.questions.add(pieces);
    this.run();
    return answer;
  }

  /** Free the device. Runs that are left end as cancelled. */
  close() {
    for (const sequence of [...this.active, ...this.waiting]) sequence.cancel();
    this.lost = "the engine was closed";
    this.failWork(this.lost);
    this.passes.destroy();
    this.queue.destroy();
    this.buffers.destroy();
    this.device.destroy();
  }

  /**
   * Work until there is nothing left to do now. Paused runs and those that are not due wait for the
   * next call, which a timer makes for the latter.
   */
  async run() {
    this.isAsked = true;
    if (this.running) return;
    this.running = true;
    clearTimeout(this.timer);
    try {
      while (!this.lost) {
        this.isAsked = false;
        if (this.background.length) await this.advance(this.background);
        this.admit();
        if (!this.questions.isDue(this.isWriting)) await this.submitSteps();
        if (this.inFlight.length) await this.collect();
        else if (this.questions.length) await this.advance(this.questions);
        else if (!this.isAsked && !this.background.length) break;
      }
    } catch (error) {
      this.fail(messageOf(error));
    } finally {
      this.running = false;
    }
    const due = Math.min(...this.active.map(({ finished, pace }) => (finished ? Infinity : pace.dueAt)));
    const left = due - performance.now();
    if (left > 0 && Number.isFinite(left)) this.timer = setTimeout(() => this.run(), left);
  }

  /**
   * Do a piece of work. Runs that gave it their blocks start again after all of it.
   *
   * @param {PieceQueue<void> | QuestionQueue} work
   */
  async advance(work) {
    while (this.inFlight.length) await this.collect();
    await work.advance();
    if (!work.length) this.lacksBlocks = null;
  }

  /** Compute what the interventions of a run need. @param {Sequence} sequence @returns {Pieces<void>} */
  async *resolve(sequence) {
    while (!sequence.finished) {
      try {
        return yield* this.activations.resolveRun(sequence.interventions);
      } catch (error) {
        const isFull = error instanceof EngineError && error.code === "queue_full";
        const mayHaveRoom = this.active.some(({ paused, finished }) => finished || !paused);
        if (!isFull || !mayHaveRoom) return sequence.end("error", messageOf(error));
      }
      await wait(); // for runs to end: without a timer the worker would read no message
      yield;
    }
  }

  async submitSteps() {
    while (this.queue.hasRoom) {
      const step = this.nextStep();
      if (!step) break;
      const submittedAt = performance.now();
      this.steps.submitted(step, () => this.waitingRuns());
      const { result } = await this.queue.submit(step, this.slots.tables);
      result.catch(() => {}); // it is awaited later; until then a failure is no unhandled one
      this.inFlight.push({ step, submittedAt, result });
    }
  }

  /** Give slots to waiting runs, and take them from finished ones, and from paused ones if needed. */
  admit() {
    this.active = this.active.filter((sequence) => {
      if (sequence.finished) {
        this.slots.release(sequence.slot, sequence.computed);
        this.lacksBlocks = null;
      }
      return !sequence.finished;
    });
    this.waiting = this.waiting.filter((sequence) => !sequence.finished);
    for (;;) {
      const [sequence] = this.inTurn;
      if (!sequence?.interventions.ready || sequence === this.lacksBlocks) break;
      const text = sequence.upTo(sequence.ids.length);
      let taken = this.slots.take(text, !sequence.isPreempted);
      if (!taken && !sequence.paused && this.preemptPaused())
        taken = this.slots.take(text, !sequence.isPreempted);
      if (!taken) break;
      this.waiting.splice(this.waiting.indexOf(sequence), 1);
      sequence.start(taken.slot, taken.reused);
      this.tellText(sequence);
      this.active.push(sequence);
    }
    this.inTurn.forEach((sequence, i) => sequence.queueMoved(this.place(i + 1)));
  }

  /**
   * Take slot and blocks from the last paused run without a row in `step`, the step that is being
   * made; false if there is none. It starts again when no other run waits, or in its turn once it
   * may write.
   *
   * @param {EngineStep | null} [step]
   */
  preemptPaused(step = null) {
    const last = this.active.findLast(
      ({ paused, finished, slot }) => paused && !finished && !step?.active.has(slot),
    );
    if (last) this.preempt(last);
    return !!last;
  }

  /** Take slot and blocks from a run, which is computed again when it starts. @param {Sequence} sequence */
  preempt(sequence) {
    const { slot, computed } = sequence;
    sequence.preempt();
    this.slots.release(slot, computed);
    this.active.splice(this.active.indexOf(sequence), 1);
    this.waiting.push(sequence);
  }

  /** Tell the device the text of a run, which its penalties count. @param {Sequence} sequence */
  tellText(sequence) {
    const { slot, ids, nCounted, params } = sequence;
    writeText(this.buffers, slot, ids, nCounted, params.logit_bias);
    sequence.textIsStale = false;
  }

  /** Return the next step, or null if there is nothing to submit. */
  nextStep() {
    for (const sequence of this.active) sequence.applyScheduledUpdates();
    const captured = this.active.some((sequence) => sequence.capture && !sequence.finished);
    const most = captured ? this.limits.max_captured_rows : this.limits.max_rows;
    /** @type {EngineStep} */
    const step = { rows: [], samples: [], parts: [], captured, active: new Map() };
    for (const sequence of [...this.active]) {
      if (!sequence.wantsDecode || !this.cover(sequence, sequence.nextPosition, step)) continue;
      if (sequence.textIsStale) this.tellText(sequence);
      const row = step.rows.length;
      step.active.set(sequence.slot, sequence.activeAt(sequence.nextPosition));
      step.rows.push(sequence.decodeRow());
      step.samples.push(sequence.sample(row));
      step.parts.push({ sequence, sampledRow: row });
    }
    const prompt = this.active.find((sequence) => sequence.prefilling && !sequence.finished);
    if (prompt) this.addChunk(step, prompt, Math.min(this.chunk, most - step.rows.length));
    return step.rows.length ? step : null;
  }

  /** @param {EngineStep} step @param {Sequence} sequence @param {number} most */
  addChunk(step, sequence, most) {
    const first = sequence.nPrefilled;
    const n = sequence.chunkSize(most);
    if (n <= 0 || !this.cover(sequence, first + n - 1, step)) return;
    const firstRow = step.rows.length;
    step.active.set(sequence.slot, sequence.activeAt(first));
    step.rows.push(...sequence.prefillRows(n));
    const sampledRow = sequence.prefilling ? null : firstRow + n - 1;
    if (sampledRow !== null) step.samples.push(sequence.sample(sampledRow));
    step.parts.push({ sequence, chunk: { first, n, firstRow }, sampledRow });
  }

  /**
   * Give a sequence of a step the KV blocks up to `position`, which paused runs make room for. Without
   * any left, one that was or is paused waits until another ends; others end with an error.
   *
   * @param {Sequence} sequence
   * @param {number} position
   * @param {EngineStep} step
   */
  cover(sequence, position, step) {
    let covered = this.coverSlot(sequence.slot, position);
    while (!covered && !sequence.paused && this.preemptPaused(step))
      covered = this.coverSlot(sequence.slot, position);
    if (covered) return true;
    const others = this.active.filter((other) => other !== sequence && !other.finished);
    if (others.some(({ paused, slot }) => paused && step.active.has(slot))) return false; // a later
    // step can preempt that one
    if (others.length && (sequence.paused || sequence.isPreempted)) {
      if (!sequence.settled && !sequence.paused) return false; // its last tokens come first
      this.preempt(sequence);
      this.lacksBlocks = sequence;
      return false;
    }
    sequence.end("error", "the KV cache is full; end another run first");
    return false;
  }

  /**
   * Give a slot the KV blocks up to `position` for a question or a run that is being prepared, while
   * no step is in flight; paused runs make room. False: there are none left.
   *
   * @param {number} slot
   * @param {number} position
   */
  coverBetweenSteps(slot, position) {
    while (!this.coverSlot(slot, position)) {
      if (!this.preemptPaused()) return false;
      [this.lacksBlocks] = this.inTurn; // else it would take them back before the next piece
    }
    return true;
  }

  /**
   * Give a slot the KV blocks up to `position`; false: there are none left.
   *
   * @param {number} slot
   * @param {number} position
   */
  coverSlot(slot, position) {
    const added = this.slots.cover(slot, position);
    if (!added) return false;
    const { first, blocks } = added;
    if (!blocks.length) return true;
    const at = (slot * this.limits.max_blocks + first) * 4;
    this.buffers.write("block_tables", new Uint32Array(blocks), at);
    return true;
  }

  /** The CachedText of each slot, while no step is in flight. */
  texts() {
    const texts = [...this.slots.texts];
    for (const sequence of this.active) texts[sequence.slot] = sequence.computed;
    return texts;
  }

  /** The runs that have a slot, {run, slot}. */
  runs() {
    return this.active.filter(({ finished }) => !finished).map(({ run, slot }) => ({ run, slot }));
  }

  /** Numbers of the runs that have none. */
  waitingRuns() {
    const waiting = this.waiting.filter(({ finished }) => !finished).map(({ run }) => run);
    return [...waiting, ...this.alsoWaiting()];
  }

  /** Read the oldest step, and hand its results to its sequences. */
  async collect() {
    const oldest = this.inFlight.shift();
    if (!oldest) return;
    const { step, submittedAt } = oldest;
    const result = await oldest.result;
    const now = performance.now();
    const ms = now - Math.max(submittedAt, this.lastRead);
    this.lastRead = now;
    this.steps.collected(step, ms);
    let nSamples = 0;
    for (const { sequence, chunk, sampledRow } of step.parts) {
      if (chunk) sequence.chunkRead(chunk.first, chunk.n, chunk.firstRow, result);
      if (chunk && chunk.n >= this.chunk) this.adjustChunk(ms);
      if (sampledRow !== null) sequence.sampleRead(result.samples[nSamples++], sampledRow, result);
    }
  }

  /** @param {number} ms */
  adjustChunk(ms) {
    if (ms > MAX_STEP_MS) this.chunk = Math.max(LEAST_CHUNK, this.chunk / 2);
    else if (ms < 0.4 * MAX_STEP_MS) this.chunk = Math.min(this.limits.max_rows, this.chunk * 2);
  }

  /** End all runs with an error: the device cannot be used any more. @param {string} message */
  fail(message) {
    if (this.lost) return;
    this.lost = message;
    for (const sequence of [...this.active, ...this.waiting]) sequence.end("error", message);
    this.failWork(message);
    this.onLost(message);
  }

  /** Answer all that was asked with an error. @param {string} message */
  failWork(message) {
    const error = new EngineError("unavailable", message);
    this.questions.fail(error);
    this.background.fail(error);
  }
}

/** What to say of an error of WebGPU that no scope took. @param {GPUError} error */
const refusalOf = (error) =>
  error instanceof GPUOutOfMemoryError
    ? "the GPU has no memory left; close other pages, or choose a smaller model or storage type"
    : `the GPU refused a part of the model: ${error.message}; load it again, and export it again if that does not help`;

/**
 * The plans that a text begins with: chunks of a prompt and single tokens.
 *
 * @param {PlanLookup} lookup
 * @param {Exported.PlanLimits} limits
 * @param {string} kind
 * @param {Acting} [acting]
 */
function firstPlans(lookup, limits, kind, acting = {}) {
  const chunk = Math.min(FIRST_CHUNK, limits.max_rows);
  return [chunk, 1].map((rows) => lookup.find({ kind, rows, samples: 1, context: 1, ...acting }));
}
