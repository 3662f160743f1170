// Passes that answer instruments: rows of a text run again, through plans that keep more
// (gpu/runners/inspection_passes.py). No step may be in flight.

import { encodePass, encodeTimed } from "./encode-pass.js";
import { padded } from "./padded.js";
import { bytesOfTimes, MAX_PASSES, PassClock, passTimes } from "./pass-clock.js";
import { StepBuffer } from "./step-buffer.js";

/** States whose logits are computed together. */
const LENS_SAMPLES = 4;
/** A plan that keeps states has so many rows at least. */
const LEAST_STATES_ROWS = 2;
/**
 * A part of a text: its rows, the interventions on all of them, and the KV blocks of each slot.
 *
 * @typedef {import("../interventions/active.js").ActiveInterventions} ActiveInterventions
 * @typedef {import("./step-buffer.js").StepRow} StepRow
 * @typedef {import("./step-buffer.js").StepSample} StepSample
 * @typedef {{rows: StepRow[], active: ActiveInterventions, tables: number[][]}} TextPart
 */

/** Bytes of a view that are read. @typedef {{view: number, at: number, bytes: number}} ViewRange */

/** A sample that selects the logits of a row; it draws nothing. */
const NO_DRAW = {
  seed: 0n,
  first_index: 0,
  temperature: 0,
  repetition_penalty: 1,
  logit_bias: [],
};

export class InspectionPasses {
  /** @param {LoadedParts} parts */
  constructor({ device, plan, buffers, pipelines, lookup, interventions }) {
    this.device = device;
    this.plan = plan;
    this.buffers = buffers;
    this.pipelines = pipelines;
    this.lookup = lookup;
    this.interventions = interventions;
    this.step = new StepBuffer(plan);
    /** @type {GPUBuffer | null} */
    this.readback = null;
    /** Made when dispatches are first timed. @type {PassClock | null} */
    this.clock = null;
  }

  /** Free the readback buffer and the clock. */
  destroy() {
    this.readback?.destroy();
    this.clock?.destroy();
  }

  /** Compute keys and values of a part. @param {TextPart} part */
  async fill(part) {
    await this.run(this.planOf("plain", part), part, [], []);
  }

  /**
   * Return attention weights of the rows to the keys first … first + n − 1: (rows, layers, heads, n).
   *
   * @param {TextPart} part
   * @param {number} first
   * @param {number} n
   */
  async attention(part, first, n) {
    const { rows } = part;
    const { n_layers: nLayers, n_heads: nHeads } = this.plan.model;
    const recorded = this.planOf("weights", part);
    const keys = tensorOf(recorded, "keys");
    const weights = tensorOf(recorded, "weights");
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
    const recorded = this.lookup.find({ kind: "weights", rows: 1, samples: 0, context: 1 });
    const weights = tensorOf(recorded, "weights");
    return Math.floor(weights.shape[1] / this.plan.model.n_heads);
  }

  /** Return the logits after each row, a Float32Array each. @param {TextPart} part */
  async logits(part) {
    const samples = part.rows.map(({ slot }, row) => sampleOf(row, slot));
    return this.readLogits(this.planOf("logits", part, samples.length), part, samples);
  }

  /**
   * Return the residual stream at the last row before every layer and after the last: layers + 1
   * Float32Arrays.
   *
   * @param {TextPart} part
   */
  async states(part) {
    const recorded = this.statesPlan(part);
    const { hidden_size: width } = this.plan.model;
    const { view, shape: [nStates, stride] } = tensorOf(recorded, "states");
    const last = (part.rows.length - 1) * padded(width);
    const ranges = Array.from({ length: nStates }, (_, i) => ({
      view,
      at: (i * stride + last) * 4,
      bytes: width * 4,
    }));
    const data = await this.run(recorded, part, [], ranges);
    return ranges.map((_, i) => new Float32Array(data, i * width * 4, width));
  }

  /** Return the logits after every layer at the last row: layers + 1 Float32Arrays. @param {TextPart} part */
  async lens(part) {
    const { rows } = part;
    const kept = this.statesPlan(part);
    await this.run(kept, part, [], []);
    const { slot } = rows[rows.length - 1];
    /** @type {Float32Array[]} */
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

  /**
   * Return the experts of the rows: {chosen, gates, norms}, (rows, expert layers, experts) each.
   *
   * @param {TextPart} part
   */
  async routes(part) {
    const { rows } = part;
    const { expert_layers: layers, experts_per_token: nExperts } = this.plan.model;
    const recorded = this.planOf("routes", part);
    const tensors = ["chosen", "gates", "norms"].map((name) => tensorOf(recorded, name));
    const ranges = tensors.flatMap((tensor) => partsOf(tensor, rows.length * nExperts));
    const data = await this.run(recorded, part, [], ranges);
    const n = layers.length * rows.length * nExperts;
    return {
      chosen: byRow(new Uint32Array(data, 0, n), new Uint32Array(n), layers.length, rows.length),
      gates: byRow(new Float32Array(data, n * 4, n), new Float32Array(n), layers.length, rows.length),
      norms: byRow(new Float32Array(data, n * 8, n), new Float32Array(n), layers.length, rows.length),
    };
  }

  /**
   * Return the GPU milliseconds of each dispatch of a recorded plan, run for a part with its last row
   * sampled. It runs twice, and the second time counts. Null: the device has no timestamps.
   *
   * @param {Exported.RecordedStep} recorded
   * @param {TextPart} part
   */
  async times(recorded, part) {
    const clock = (this.clock ??= PassClock.of(this.device, MAX_PASSES));
    if (!clock) return null;
    const { rows } = part;
    const sample = { ...sampleOf(rows.length - 1, rows[0].slot), params: NO_FILTERS };
    await this.run(recorded, part, [sample], []);
    const dispatches = await this.pipelines.prepare(recorded);
    /** @type {number[]} */
    const times = [];
    for (let at = 0; at < dispatches.length; at += MAX_PASSES) {
      const timed = await this.timesOf(dispatches.slice(at, at + MAX_PASSES), clock);
      if (!timed) return null;
      times.push(...timed);
    }
    return times;
  }

  /**
   * Copy whole KV blocks, `from[i]` to `to[i]`; over a third buffer, as WebGPU wants it.
   *
   * @param {number[]} from
   * @param {number[]} to
   */
  copyBlocks(from, to) {
    const pools = Object.entries(this.plan.tensors)
      .filter(([name]) => /^layer\d+\.(keys|values)$/.test(name))
      .map(([, { view }]) => this.buffers.binding(view));
    /** @param {{size: number}} pool */
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

  /** @param {string} kind @param {TextPart} part @param {number} [samples] @param {number} [nRows] */
  planOf(kind, { rows, active }, samples = 0, nRows = rows.length) {
    const context = rows[rows.length - 1].position + 1;
    const { actsOnBase: interventions, actsOnLoras: loras } = active;
    return this.lookup.find({ kind, rows: nRows, samples, context, interventions, loras });
  }

  /** @param {TextPart} part */
  statesPlan(part) {
    return this.planOf("states", part, 0, Math.max(part.rows.length, LEAST_STATES_ROWS));
  }

  /** @param {Exported.RecordedStep} recorded @param {TextPart} part @param {StepSample[]} samples */
  async readLogits(recorded, part, samples) {
    const { view, shape } = this.plan.tensors.logits;
    const { vocab_size: vocabSize } = this.plan.model;
    const ranges = samples.map((_, i) => ({ view, at: i * shape[shape.length - 1] * 4, bytes: vocabSize * 4 }));
    const data = await this.run(recorded, part, samples, ranges);
    return samples.map((_, i) => new Float32Array(data, i * vocabSize * 4, vocabSize));
  }

  /**
   * Run a plan; resolves to the bytes of `ranges` of views, one after the other.
   *
   * @param {Exported.RecordedStep} recorded
   * @param {TextPart} part
   * @param {StepSample[]} samples
   * @param {ViewRange[]} ranges
   */
  async run(recorded, { rows, active, tables }, samples, ranges) {
    const dispatches = await this.pipelines.prepare(recorded);
    this.buffers.write("step", this.step.pack(rows, samples, tables));
    if (rows.length) this.interventions.set(rows[0].slot, active);
    const total = ranges.reduce((sum, { bytes }) => sum + bytes, 0);
    const encoder = this.device.createCommandEncoder();
    encodePass(encoder, dispatches);
    const readback = this.readbackOf(total);
    let to = 0;
    for (const { view, at, bytes } of ranges) {
      const { buffer, offset } = this.buffers.binding(view);
      encoder.copyBufferToBuffer(buffer, offset + at, readback, to, bytes);
      to += bytes;
    }
    this.device.queue.submit([encoder.finish()]);
    if (total) return this.bytesRead(readback, total);
    await this.device.queue.onSubmittedWorkDone();
    return new ArrayBuffer(0);
  }

  /**
   * Run each of `dispatches` as a pass of its own; resolves to their milliseconds.
   *
   * @param {import("./encode-pass.js").Dispatch[]} dispatches
   * @param {PassClock} clock
   */
  async timesOf(dispatches, clock) {
    const n = dispatches.length;
    const encoder = this.device.createCommandEncoder();
    encodeTimed(encoder, dispatches, dispatches.map((_, i) => i + 1), clock);
    const readback = this.readbackOf(bytesOfTimes(n));
    clock.copy(encoder, n, readback, 0);
    this.device.queue.submit([encoder.finish()]);
    return passTimes(await this.bytesRead(readback, bytesOfTimes(n)), 0, n);
  }

  /** @param {GPUBuffer} readback @param {number} total */
  async bytesRead(readback, total) {
    const mapped = Math.ceil(total / 8) * 8;
    await readback.mapAsync(GPUMapMode.READ, 0, mapped);
    const data = readback.getMappedRange(0, mapped).slice(0, total);
    readback.unmap();
    return data;
  }

  /** The readback buffer, made anew when a larger answer comes. @param {number} bytes */
  readbackOf(bytes) {
    if (this.readback && this.readback.size >= bytes) return this.readback;
    this.readback?.destroy();
    const size = 2 ** Math.ceil(Math.log2(Math.max(bytes, 8)));
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    this.readback = this.device.createBuffer({ label: "answers", size, usage });
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
  watermark_bias: 0,
};

/** @param {number} row @param {number} slot @returns {StepSample} */
const sampleOf = (row, slot) => ({ row, slot, index: 0, params: NO_DRAW });

/**
 * Return a tensor of a plan that answers questions; check-plan.js sees to it that it is there.
 *
 * @param {Exported.RecordedStep} recorded
 * @param {string} name
 */
const tensorOf = ({ tensors = {} }, name) => tensors[name];

/**
 * Return the numbers of (layers, rows, n) as (rows, layers, n), in `to`.
 *
 * @template {Uint32Array | Float32Array} T
 * @param {T} from
 * @param {T} to
 * @param {number} nLayers
 * @param {number} nRows
 */
function byRow(from, to, nLayers, nRows) {
  const n = from.length / (nLayers * nRows);
  for (let layer = 0; layer < nLayers; layer++)
    for (let row = 0; row < nRows; row++) {
      const at = (layer * nRows + row) * n;
      to.set(from.subarray(at, at + n), (row * nLayers + layer) * n);
    }
  return to;
}

/**
 * Ranges of the first `n` numbers of each part of a tensor of (parts, stride).
 *
 * @param {Exported.PlanTensor} tensor
 * @param {number} n
 * @returns {ViewRange[]}
 */
function partsOf({ view, shape: [parts, stride] }, n) {
  return Array.from({ length: parts }, (_, i) => ({ view, at: i * stride * 4, bytes: n * 4 }));
}
