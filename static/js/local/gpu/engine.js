// The engine in the browser: loads a model, and runs the steps that its scheduler chooses, two in
// flight. The shaders are the server's, so the ids are the same.

import { Buffers } from "./buffers.js";
import { checkPlan } from "./check-plan.js";
import { adapterName, profileFor, requestDevice, WANTED } from "./device.js";
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
import { FIRST_CHUNK, Scheduler } from "./scheduler.js";
import { Sequence } from "./sequence.js";
import { Slots } from "./slots.js";
import { StepLog } from "./step-log.js";
import { StepQueue } from "./step-queue.js";
import { uploadWeights } from "./weights.js";

/**
 * A step that was submitted.
 *
 * @typedef {import("./scheduler.js").ScheduledStep} ScheduledStep
 * @typedef {{step: ScheduledStep, submittedAt: number, result: Promise<import("./results.js").StepResult>}} InFlight
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
   *   adapter: GPUAdapter, files: ModelFiles, text: TokenTexts,
   *   onProgress?: (at: LoadProgress) => void, onLost?: (message: string) => void,
   * }} asked
   */
  static async load({ adapter, files, text, onProgress = () => {}, onLost = () => {} }) {
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
    this.scheduler = new Scheduler(this.slots, buffers, plan.limits);
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
      texts: () => this.scheduler.texts(),
      cover: (slot, position) => this.scheduler.coverBetweenSteps(slot, position),
      isIdle: () => !this.scheduler.isWriting,
      maxRows: plan.limits.max_rows,
    });
    /** Resolves interventions. */
    this.activations = new ActivationCache(this.recomputer, (acting) =>
      pipelines.compile(firstPlans(lookup, plan.limits, "plain", acting)),
    );
    /** @type {InFlight[]} */
    this.inFlight = [];
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
        this.scheduler.lacksBlocks = null;
        this.run();
      },
    );
    if (this.lost) {
      sequence.end("error", this.lost);
      return run;
    }
    this.scheduler.add(sequence);
    if (!sequence.interventions.ready) this.work(this.resolve(sequence));
    this.run();
    return run;
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
    for (const sequence of this.scheduler.sequences) sequence.cancel();
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
        this.scheduler.admit();
        if (!this.questions.isDue(this.scheduler.isWriting)) await this.submitSteps();
        if (this.inFlight.length) await this.collect();
        else if (this.questions.length) await this.advance(this.questions);
        else if (!this.isAsked && !this.background.length) break;
      }
    } catch (error) {
      this.fail(messageOf(error));
    } finally {
      this.running = false;
    }
    const left = this.scheduler.dueAt - performance.now(); // below 0: it has come since the last look
    if (Number.isFinite(left)) this.timer = setTimeout(() => this.run(), left);
  }

  /**
   * Do a piece of work. Runs that gave it their blocks start again after all of it.
   *
   * @param {PieceQueue<void> | QuestionQueue} work
   */
  async advance(work) {
    while (this.inFlight.length) await this.collect();
    await work.advance();
    if (!work.length) this.scheduler.lacksBlocks = null;
  }

  /** Compute what the interventions of a run need. @param {Sequence} sequence @returns {Pieces<void>} */
  async *resolve(sequence) {
    while (!sequence.finished) {
      try {
        return yield* this.activations.resolveRun(sequence.interventions);
      } catch (error) {
        const isFull = error instanceof EngineError && error.code === "queue_full";
        const mayHaveRoom = this.scheduler.active.some(({ paused, finished }) => finished || !paused);
        if (!isFull || !mayHaveRoom) return sequence.end("error", messageOf(error));
      }
      await wait(); // for runs to end: without a timer the worker would read no message
      yield;
    }
  }

  async submitSteps() {
    while (this.queue.hasRoom) {
      const step = this.scheduler.nextStep();
      if (!step) break;
      const submittedAt = performance.now();
      this.steps.submitted(step, () => this.waitingRuns());
      const { result } = await this.queue.submit(step, this.slots.tables);
      result.catch(() => {}); // it is awaited later; until then a failure is no unhandled one
      this.inFlight.push({ step, submittedAt, result });
    }
  }

  /** Numbers of the runs that have none. */
  waitingRuns() {
    return [...this.scheduler.waitingRuns(), ...this.alsoWaiting()];
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
    for (const { sequence, chunk, sampledRow, capture } of step.parts) {
      const own = capture ? result : { ...result, captured: null };
      if (chunk) sequence.chunkRead(chunk.first, chunk.n, chunk.firstRow, own);
      if (chunk) this.scheduler.chunkTook(chunk.n, ms);
      if (sampledRow !== null) sequence.sampleRead(own.samples[nSamples++], sampledRow, own);
    }
  }

  /** End all runs with an error: the device cannot be used any more. @param {string} message */
  fail(message) {
    if (this.lost) return;
    this.lost = message;
    for (const sequence of this.scheduler.sequences) sequence.end("error", message);
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
  const most = kind === "captured" ? limits.max_captured_rows : limits.max_rows;
  const chunk = Math.min(FIRST_CHUNK, most);
  return [chunk, 1].map((rows) => lookup.find({ kind, rows, samples: 1, context: 1, ...acting }));
}
