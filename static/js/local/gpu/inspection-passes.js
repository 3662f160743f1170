// @ts-nocheck
// Passes that answer instruments: rows of a text run again, through plans that keep more
// (gpu/runners/inspection_passes.py). No step may be in flight.
//
// A part of a text is {rows, active, tables}: its rows, the ActiveInterventions on all of them, and the
// KV blocks of each slot.

import { encodePass, encodeTimed } from "./encode-pass.js";
import { padded } from "./padded.js";
import { bytesOfTimes, MAX_PASSES, PassClock, passTimes } from "./pass-clock.js";
import { StepBuffer } from "./step-buffer.js";

/** States whose logits are computed together. */
const LENS_SAMPLES = 4;
/** A plan that keeps states has so many rows at least. */
const LEAST_STATES_ROWS = 2;
/** A sample that selects the logits of a row; it draws nothing. */
const NO_DRAW = {
  seed: 0n,
  first_index: 0,
  temperature: 0,
  repetition_penalty: 1,
  logit_bias: [],
};

export class InspectionPasses {
  constructor({ device, plan, buffers, pipelines, lookup, interventions }) {
    Object.assign(this, { device, plan, buffers, pipelines, lookup, interventions });
    this.step = new StepBuffer(plan);
    this.readback = null;
    this.clock = null; // made when dispatches are first timed
  }

  /** Free the readback buffer and the clock. */
  destroy() {
    this.readback?.destroy();
    this.clock?.destroy();
  }

  /** Compute keys and values of a part. */
  async fill(part) {
    await this.run(this.planOf("plain", part), part, [], []);
  }

  /** Return attention weights of the rows to the keys first … first + n − 1: (rows, layers, heads, n). */
  async attention(part, first, n) {
    const { rows } = part;
    const { n_layers: nLayers, n_heads: nHeads } = this.plan.model;
    const recorded = this.planOf("weights", part);
    const { keys, weights } = recorded.tensors;
    const atOnce = Math.floor(weights.shape[1] / (rows.length * nHeads));
    const found = new Float32Array(rows.length * nLayers * nHeads * n);
    for (let at = 0; at < n; at += atOnce) {
      const nKeys = Math.min(atOnce, n - at);
      this.buffers.writeView(keys.view, new Uint32Array([first + at, nKeys]));
      const ranges = partsOf(weights, rows.length * nHeads * nKeys);
      const values = await this.run(recorded, part, [], ranges);
      for (let layer = 0, from = 0; layer < nLayers; layer++)
        for (let row = 0; row < rows.length; row++)
          for (let head = 0; head < nHeads; head++, from += nKeys) {
            const to = ((row * nLayers + layer) * nHeads + head) * n + at;
            found.set(new Float32Array(values, from * 4, nKeys), to);
          }
    }
    return found;
  }

  /** Most rows whose attention to one key is kept at once. */
  get mostAttentionRows() {
    const { weights } = this.lookup.find({ kind: "weights", rows: 1, samples: 0, context: 1 }).tensors;
    return Math.floor(weights.shape[1] / this.plan.model.n_heads);
  }

  /** Return the logits after each row, a Float32Array each. */
  async logits(part) {
    const samples = part.rows.map(({ slot }, row) => sampleOf(row, slot));
    return this.readLogits(this.planOf("logits", part, samples.length), part, samples);
  }

  /**
   * Return the residual stream at the last row before every layer and after the last: layers + 1
   * Float32Arrays.
   */
  async states(part) {
    const recorded = this.statesPlan(part);
    const { hidden_size: width } = this.plan.model;
    const { view, shape: [nStates, stride] } = recorded.tensors.states;
    const last = (part.rows.length - 1) * padded(width);
    const ranges = Array.from({ length: nStates }, (_, i) => ({
      view,
      at: (i * stride + last) * 4,
      bytes: width * 4,
    }));
    const data = await this.run(recorded, part, [], ranges);
    return ranges.map((_, i) => new Float32Array(data, i * width * 4, width));
  }

  /** Return the logits after every layer at the last row: layers + 1 Float32Arrays. */
  async lens(part) {
    const { rows } = part;
    const kept = this.statesPlan(part);
    await this.run(kept, part, [], []);
    const { slot } = rows.at(-1);
    const found = [];
    const nStates = this.plan.model.n_layers + 1;
    for (let first = 0; first < nStates; first += LENS_SAMPLES) {
      const n = Math.min(LENS_SAMPLES, nStates - first);
      const samples = Array.from({ length: n }, (_, i) =>
        sampleOf((first + i) * kept.rows + rows.length - 1, slot),
      );
      const recorded = this.lookup.find({ kind: "lens", rows: kept.rows, samples: n, context: 1 });
      found.push(...(await this.readLogits(recorded, { ...part, rows: [] }, samples)));
    }
    return found;
  }

  /** Return the experts of the rows: {chosen, gates, norms}, (rows, expert layers, experts) each. */
  async routes(part) {
    const { rows } = part;
    const { expert_layers: layers, experts_per_token: nExperts } = this.plan.model;
    const recorded = this.planOf("routes", part);
    const names = ["chosen", "gates", "norms"];
    const n = rows.length * nExperts;
    const ranges = names.flatMap((name) => partsOf(recorded.tensors[name], n));
    const data = await this.run(recorded, part, [], ranges);
    return Object.fromEntries(
      names.map((name, i) => {
        const Words = name === "chosen" ? Uint32Array : Float32Array;
        const byLayer = new Words(data, i * layers.length * n * 4, layers.length * n);
        const byRow = new Words(byLayer.length);
        for (let layer = 0; layer < layers.length; layer++)
          for (let row = 0; row < rows.length; row++) {
            const from = (layer * rows.length + row) * nExperts;
            const to = (row * layers.length + layer) * nExperts;
            byRow.set(byLayer.subarray(from, from + nExperts), to);
          }
        return [name, byRow];
      }),
    );
  }

  /**
   * Return the GPU milliseconds of each dispatch of a recorded plan, run for a part with its last row
   * sampled. It runs twice, and the second time counts. Null: the device has no timestamps.
   */
  async times(recorded, part) {
    this.clock ??= PassClock.of(this.device, MAX_PASSES);
    if (!this.clock) return null;
    const { rows } = part;
    const sample = { ...sampleOf(rows.length - 1, rows[0].slot), params: NO_FILTERS };
    await this.run(recorded, part, [sample], []);
    const dispatches = await this.pipelines.prepare(recorded);
    const times = [];
    for (let at = 0; at < dispatches.length; at += MAX_PASSES) {
      const timed = await this.timesOf(dispatches.slice(at, at + MAX_PASSES));
      if (!timed) return null;
      times.push(...timed);
    }
    return times;
  }

  /** Copy whole KV blocks, `from[i]` to `to[i]`; over a third buffer, as WebGPU wants it. */
  copyBlocks(from, to) {
    const pools = Object.entries(this.plan.tensors)
      .filter(([name]) => /^layer\d+\.(keys|values)$/.test(name))
      .map(([, { view }]) => this.buffers.binding(view));
    const bytesOf = ({ size }) => size / this.plan.limits.n_blocks;
    const size = Math.max(...pools.map(bytesOf));
    const usage = GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const between = this.device.createBuffer({ label: "block", size, usage });
    const encoder = this.device.createCommandEncoder();
    for (const pool of pools) {
      const { buffer, offset } = pool;
      const bytes = bytesOf(pool);
      from.forEach((block, i) => {
        encoder.copyBufferToBuffer(buffer, offset + block * bytes, between, 0, bytes);
        encoder.copyBufferToBuffer(between, 0, buffer, offset + to[i] * bytes, bytes);
      });
    }
    this.device.queue.submit([encoder.finish()]);
    between.destroy(); // the copies that were submitted still happen
  }

  // ---- their parts -------------------------------------------------------------------------

  planOf(kind, { rows, active }, samples = 0, nRows = rows.length) {
    const context = rows.at(-1).position + 1;
    const { actsOnBase: interventions, actsOnLoras: loras } = active;
    return this.lookup.find({ kind, rows: nRows, samples, context, interventions, loras });
  }

  statesPlan(part) {
    return this.planOf("states", part, 0, Math.max(part.rows.length, LEAST_STATES_ROWS));
  }

  async readLogits(recorded, part, samples) {
    const { view, shape } = this.plan.tensors.logits;
    const { vocab_size: vocabSize } = this.plan.model;
    const ranges = samples.map((_, i) => ({ view, at: i * shape.at(-1) * 4, bytes: vocabSize * 4 }));
    const data = await this.run(recorded, part, samples, ranges);
    return samples.map((_, i) => new Float32Array(data, i * vocabSize * 4, vocabSize));
  }

  /** Run a plan; resolves to the bytes of `ranges` of views, {view, at, bytes}, one after the other. */
  async run(recorded, { rows, active, tables }, samples, ranges) {
    const dispatches = await this.pipelines.prepare(recorded);
    const n = this.step.pack(rows, samples, tables);
    this.buffers.write("step", this.step.bytes, 0, n);
    if (rows.length) this.interventions.set(rows[0].slot, active);
    const total = ranges.reduce((sum, { bytes }) => sum + bytes, 0);
    const encoder = this.device.createCommandEncoder();
    encodePass(encoder, dispatches);
    const readback = total ? this.readbackOf(total) : null;
    let to = 0;
    for (const { view, at, bytes } of ranges) {
      const { buffer, offset } = this.buffers.binding(view);
      encoder.copyBufferToBuffer(buffer, offset + at, readback, to, bytes);
      to += bytes;
    }
    this.device.queue.submit([encoder.finish()]);
    if (!readback) {
      await this.device.queue.onSubmittedWorkDone();
      return null;
    }
    return this.bytesRead(readback, total);
  }

  /** Run each of `dispatches` as a pass of its own; resolves to their milliseconds. */
  async timesOf(dispatches) {
    const n = dispatches.length;
    const encoder = this.device.createCommandEncoder();
    encodeTimed(encoder, dispatches, dispatches.map((_, i) => i + 1), this.clock);
    const readback = this.readbackOf(bytesOfTimes(n));
    this.clock.copy(encoder, n, readback, 0);
    this.device.queue.submit([encoder.finish()]);
    return passTimes(await this.bytesRead(readback, bytesOfTimes(n)), 0, n);
  }

  async bytesRead(readback, total) {
    const mapped = Math.ceil(total / 8) * 8;
    await readback.mapAsync(GPUMapMode.READ, 0, mapped);
    const data = readback.getMappedRange(0, mapped).slice(0, total);
    readback.unmap();
    return data;
  }

  /** The readback buffer, made anew when a larger answer comes. */
  readbackOf(bytes) {
    if (!(this.readback?.size >= bytes)) {
      this.readback?.destroy();
      const size = 2 ** Math.ceil(Math.log2(Math.max(bytes, 8)));
      const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
      this.readback = this.device.createBuffer({ label: "answers", size, usage });
    }
    return this.readback;
  }
}

/** A draw without filters, as a step of unknown settings is timed. */
const NO_FILTERS = {
  ...NO_DRAW,
  temperature: 1,
  top_k: 0,
  top_p: 1,
  min_p: 0,
  frequency_penalty: 0,
  presence_penalty: 0,
};

const sampleOf = (row, slot) => ({ row, slot, index: 0, params: NO_DRAW });

/** Ranges of the first `n` numbers of each part of a tensor of (parts, stride). */
function partsOf({ view, shape: [parts, stride] }, n) {
  return Array.from({ length: parts }, (_, i) => ({ view, at: i * stride * 4, bytes: n * 4 }));
}
