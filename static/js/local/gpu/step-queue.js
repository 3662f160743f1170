// Steps in flight: packed, encoded and submitted; read back in order.

import { encodePass, encodeTimed } from "./encode-pass.js";
import { bytesOfTimes, PassClock, passTimes } from "./pass-clock.js";
import { Captured, sampleOf } from "./results.js";
import { StepBuffer } from "./step-buffer.js";

/** A second step keeps the GPU busy while the first one is read; a third one gains nothing. */
export const DEPTH = 2;
/**
 * From one captured step whose layers are timed to the next: a GPU may stop and start between
 * passes. Where the processor computes, it does not.
 */
const TIMED_EVERY = { software: 1, portable: 8 };

/**
 * A step, with what acts on each of its slots.
 *
 * @typedef {import("../interventions/active.js").ActiveInterventions} ActiveInterventions
 * @typedef {import("./step-buffer.js").StepRow} StepRow
 * @typedef {import("./step-buffer.js").StepSample} StepSample
 * @typedef {{rows: StepRow[], samples: StepSample[], captured: boolean, active: Map<number, ActiveInterventions>}} Step
 * @typedef {{rows: number, captured: boolean}} StepSize
 */

export class StepQueue {
  /** @param {LoadedParts} parts */
  constructor({ device, plan, buffers, pipelines, lookup, interventions }) {
    this.device = device;
    this.plan = plan;
    this.buffers = buffers;
    this.pipelines = pipelines;
    this.lookup = lookup;
    this.interventions = interventions;
    this.step = new StepBuffer(plan);
    const nPasses = Math.max(...plan.plans.map(({ marks = [] }) => marks.length + 1));
    /** One clock for all steps in flight: each step's times are copied before the next writes its own. */
    this.clock = PassClock.of(device, nPasses);
    this.nCaptured = 0;
    const results = Math.max(...plan.plans.map((each) => timesAt(each)), 8);
    const size = results + bytesOfTimes(nPasses);
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    this.readbacks = Array.from({ length: DEPTH }, () => device.createBuffer({ size, usage }));
    this.free = [...this.readbacks];
  }

  /** Whether another step may be submitted. */
  get hasRoom() {
    return this.free.length > 0;
  }

  /** Free the readback buffers and the clock. */
  destroy() {
    for (const readback of this.readbacks) readback.destroy();
    this.clock?.destroy();
  }

  /**
   * Submit a step; `tables`: the KV blocks of all slots. Resolves once it is submitted, to {result}: a
   * promise of what `read` returns.
   *
   * @param {Step} step
   * @param {number[][]} tables
   */
  async submit({ rows, samples, captured, active }, tables) {
    const context = rows.reduce((most, row) => Math.max(most, row.position + 1), 1);
    const kind = captured ? "captured" : "plain";
    const size = { rows: rows.length, samples: samples.length };
    const acting = {
      interventions: [...active.values()].some(({ actsOnBase }) => actsOnBase),
      loras: [...active.values()].some(({ actsOnLoras }) => actsOnLoras),
    };
    const recorded = this.lookup.find({ kind, ...size, context, ...acting });
    const dispatches = await this.pipelines.prepare(recorded);
    const begun = performance.now();
    const readback = this.free.shift();
    if (!readback) throw new RangeError(`there are ${DEPTH} steps in flight already`);
    const ends = this.passEnds(recorded, dispatches.length, { rows: rows.length, captured });
    this.buffers.write("step", this.step.pack(rows, samples, tables));
    for (const [slot, each] of active) this.interventions.set(slot, each);
    this.device.queue.submit([this.encode(recorded, dispatches, ends, readback)]);
    const encode = performance.now() - begun;
    return { result: this.read(readback, recorded, { ...size, captured }, ends.length, encode) };
  }

  /**
   * Return after how many of its dispatches each pass of a step ends.
   *
   * @param {Pick<Exported.RecordedStep, "marks">} recorded
   * @param {number} nDispatches
   * @param {StepSize} step
   */
  passEnds({ marks = [] }, nDispatches, { rows, captured }) {
    if (!captured || !this.clock) return [nDispatches];
    const isPrompt = rows > this.plan.limits.slots;
    if (!isPrompt) this.nCaptured += 1;
    const every = this.plan.profile === "software" ? TIMED_EVERY.software : TIMED_EVERY.portable;
    const timed = isPrompt || every === 1 || this.nCaptured % every === 1;
    return timed ? [...marks.map(([end]) => end), nDispatches] : [nDispatches];
  }

  /**
   * @param {Exported.RecordedStep} recorded
   * @param {import("./encode-pass.js").Dispatch[]} dispatches
   * @param {number[]} ends
   * @param {GPUBuffer} readback
   */
  encode(recorded, dispatches, ends, readback) {
    const encoder = this.device.createCommandEncoder();
    if (this.clock) {
      encodeTimed(encoder, dispatches, ends, this.clock);
      this.clock.copy(encoder, ends.length, readback, timesAt(recorded));
    } else encodePass(encoder, dispatches);
    const bytes = recorded.samples * this.plan.results.words * 4;
    if (bytes) {
      const { buffer, offset } = this.buffers.tensor("results");
      encoder.copyBufferToBuffer(buffer, offset, readback, 0, bytes);
    }
    for (const { view, at } of recorded.kept ?? []) {
      const { buffer, offset, size } = this.buffers.binding(view);
      encoder.copyBufferToBuffer(buffer, offset, readback, at, size);
    }
    return encoder.finish();
  }

  /**
   * Resolves to the samples and statistics of a step, and its times in milliseconds.
   *
   * @param {GPUBuffer} readback
   * @param {Exported.RecordedStep} recorded
   * @param {StepSize & {samples: number}} step
   * @param {number} nPasses
   * @param {number} encode
   * @returns {Promise<import("./results.js").StepResult>}
   */
  async read(readback, recorded, { rows, samples, captured }, nPasses, encode) {
    const begun = performance.now();
    const at = timesAt(recorded);
    const bytes = at + (this.clock ? bytesOfTimes(nPasses) : 0);
    let data = new ArrayBuffer(0);
    if (bytes) {
      await readback.mapAsync(GPUMapMode.READ, 0, bytes);
      data = readback.getMappedRange(0, bytes).slice(0);
      readback.unmap();
    } else {
      await this.device.queue.onSubmittedWorkDone();
    }
    const waited = performance.now();
    this.free.push(readback);
    const passes = this.clock && passTimes(data, at, nPasses);
    return {
      passes: nPasses > 1 ? passes : null,
      gpu: passes && passes.reduce((sum, ms) => sum + ms, 0),
      samples: Array.from({ length: samples }, (_, i) => sampleOf(data, i, this.plan.results)),
      captured: captured ? new Captured(data, recorded, this.plan) : null,
      nRows: rows,
      encode,
      wait: waited - begun,
      read: performance.now() - waited,
    };
  }
}

/**
 * Byte of the readback buffer at which the times of a step begin.
 *
 * @param {Exported.RecordedStep} recorded
 */
const timesAt = ({ result_bytes: bytes }) => Math.ceil(bytes / 8) * 8;
