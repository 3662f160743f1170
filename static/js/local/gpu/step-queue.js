// Steps in flight: packed, encoded and submitted; read back in order.

import { encodePass } from "./encode-pass.js";
import { Captured, sampleOf } from "./results.js";
import { StepBuffer } from "./step-buffer.js";

/** A second step keeps the GPU busy while the first one is read; a third one gains nothing. */
export const DEPTH = 2;

export class StepQueue {
  constructor({ device, plan, buffers, pipelines, lookup, interventions }) {
    Object.assign(this, { device, plan, buffers, pipelines, lookup, interventions });
    this.step = new StepBuffer(plan);
    const size = Math.max(...plan.plans.map((each) => each.result_bytes), 8);
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    this.readbacks = Array.from({ length: DEPTH }, () => device.createBuffer({ size, usage }));
    this.free = [...this.readbacks];
  }

  /** Whether another step may be submitted. */
  get hasRoom() {
    return this.free.length > 0;
  }

  /** Free the readback buffers. */
  destroy() {
    for (const readback of this.readbacks) readback.destroy();
  }

  /**
   * Submit a step, {rows, samples, captured, active}; `active` has the ActiveInterventions of each of
   * its slots, and `tables` the KV blocks of all. Resolves once it is submitted, to {result}: a promise
   * of what `read` returns.
   */
  async submit({ rows, samples, captured, active }, tables) {
    const context = rows.reduce((most, row) => Math.max(most, row.position + 1), 1);
    const kind = captured ? "captured" : "plain";
    const size = { rows: rows.length, samples: samples.length };
    const interventions = [...active.values()].some(({ acts }) => acts);
    const recorded = this.lookup.find({ kind, ...size, context, interventions });
    const dispatches = await this.pipelines.prepare(recorded);
    const begun = performance.now();
    const readback = this.free.shift();
    const n = this.step.pack(rows, samples, tables);
    this.buffers.write("step", this.step.bytes, 0, n);
    for (const [slot, each] of active) this.interventions.set(slot, each);
    this.device.queue.submit([this.encode(recorded, dispatches, readback)]);
    const encode = performance.now() - begun;
    return { result: this.read(readback, recorded, { ...size, captured }, encode) };
  }

  encode(recorded, dispatches, readback) {
    const encoder = this.device.createCommandEncoder();
    encodePass(encoder, dispatches);
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

  /** Resolves to the samples and statistics of a step, and its times in milliseconds. */
  async read(readback, recorded, { rows, samples, captured }, encode) {
    const begun = performance.now();
    const bytes = Math.ceil(recorded.result_bytes / 8) * 8;
    let data = null;
    if (bytes) {
      await readback.mapAsync(GPUMapMode.READ, 0, bytes);
      data = readback.getMappedRange(0, bytes).slice(0);
      readback.unmap();
    } else {
      await this.device.queue.onSubmittedWorkDone();
    }
    const waited = performance.now();
    this.free.push(readback);
    return {
      samples: Array.from({ length: samples }, (_, i) => sampleOf(data, i, this.plan.results)),
      captured: captured ? new Captured(data, recorded, this.plan) : null,
      nRows: rows,
      encode,
      wait: waited - begun,
      read: performance.now() - waited,
    };
  }
}
