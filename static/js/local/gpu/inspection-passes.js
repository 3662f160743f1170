// Passes that answer instruments: rows of a text run again, through plans that keep more
// (gpu/runners/inspection_passes.py). No step may be in flight.

import { encodePass } from "./encode-pass.js";
import { StepBuffer } from "./step-buffer.js";

/** States whose logits are computed together. */
const LENS_SAMPLES = 4;
/** A plan that keeps states has so many rows at least. */
const LEAST_STATES_ROWS = 2;
/** A sample that selects the logits of a row; it draws nothing. */
const NO_DRAW = { seed: 0n, first_index: 0, temperature: 0, logit_bias: [] };

export class InspectionPasses {
  constructor(device, plan, buffers, pipelines, lookup) {
    Object.assign(this, { device, plan, buffers, pipelines, lookup });
    this.step = new StepBuffer(plan);
    this.readback = null;
  }

  /** Free the readback buffer. */
  destroy() {
    this.readback?.destroy();
  }

  /** Compute keys and values of `rows`. */
  async fill(rows, tables) {
    await this.run(this.planOf("plain", rows), { rows, samples: [] }, tables, []);
  }

  /** Return attention weights of `rows` to the keys first … first + n − 1: (rows, layers, heads, n). */
  async attention(rows, tables, first, n) {
    const { n_layers: nLayers, n_heads: nHeads } = this.plan.model;
    const recorded = this.planOf("weights", rows);
    const { keys, weights } = recorded.tensors;
    const atOnce = Math.floor(weights.shape[1] / (rows.length * nHeads));
    const found = new Float32Array(rows.length * nLayers * nHeads * n);
    for (let at = 0; at < n; at += atOnce) {
      const part = Math.min(atOnce, n - at);
      this.buffers.writeView(keys.view, new Uint32Array([first + at, part]));
      const ranges = partsOf(weights, rows.length * nHeads * part);
      const values = await this.run(recorded, { rows, samples: [] }, tables, ranges);
      for (let layer = 0, from = 0; layer < nLayers; layer++)
        for (let row = 0; row < rows.length; row++)
          for (let head = 0; head < nHeads; head++, from += part) {
            const to = ((row * nLayers + layer) * nHeads + head) * n + at;
            found.set(new Float32Array(values, from * 4, part), to);
          }
    }
    return found;
  }

  /** Most rows whose attention to one key is kept at once. */
  get mostAttentionRows() {
    const { weights } = this.lookup.find({ kind: "weights", rows: 1, samples: 0, context: 1 }).tensors;
    return Math.floor(weights.shape[1] / this.plan.model.n_heads);
  }

  /** Return the logits after each row of `rows` that `places` names, a Float32Array each. */
  async logits(rows, places, tables) {
    const samples = places.map((row) => sampleOf(row, rows[0].slot));
    return this.readLogits(this.planOf("logits", rows, places.length), { rows, samples }, tables);
  }

  /** Return the logits after every layer at the last of `rows`: layers + 1 Float32Arrays. */
  async lens(rows, tables) {
    const context = rows.at(-1).position + 1;
    const nRows = Math.max(rows.length, LEAST_STATES_ROWS);
    const kept = this.lookup.find({ kind: "states", rows: nRows, samples: 0, context });
    await this.run(kept, { rows, samples: [] }, tables, []);
    const { slot } = rows.at(-1);
    const found = [];
    const nStates = this.plan.model.n_layers + 1;
    for (let first = 0; first < nStates; first += LENS_SAMPLES) {
      const n = Math.min(LENS_SAMPLES, nStates - first);
      const samples = Array.from({ length: n }, (_, i) =>
        sampleOf((first + i) * kept.rows + rows.length - 1, slot),
      );
      const recorded = this.lookup.find({ kind: "lens", rows: kept.rows, samples: n, context: 1 });
      found.push(...(await this.readLogits(recorded, { rows: [], samples }, tables)));
    }
    return found;
  }

  /** Return the experts of `rows`: {chosen, gates, norms}, (rows, expert layers, experts) each. */
  async routes(rows, tables) {
    const { expert_layers: layers, experts_per_token: nExperts } = this.plan.model;
    const recorded = this.planOf("routes", rows);
    const names = ["chosen", "gates", "norms"];
    const n = rows.length * nExperts;
    const ranges = names.flatMap((name) => partsOf(recorded.tensors[name], n));
    const data = await this.run(recorded, { rows, samples: [] }, tables, ranges);
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

  planOf(kind, rows, samples = 0) {
    const context = rows.at(-1).position + 1;
    return this.lookup.find({ kind, rows: rows.length, samples, context });
  }

  async readLogits(recorded, step, tables) {
    const { view, shape } = this.plan.tensors.logits;
    const { vocab_size: vocabSize } = this.plan.model;
    const ranges = step.samples.map((_, i) => ({ view, at: i * shape.at(-1) * 4, bytes: vocabSize * 4 }));
    const data = await this.run(recorded, step, tables, ranges);
    return step.samples.map((_, i) => new Float32Array(data, i * vocabSize * 4, vocabSize));
  }

  /** Run a plan; resolves to the bytes of `ranges` of views, {view, at, bytes}, one after the other. */
  async run(recorded, { rows, samples }, tables, ranges) {
    const dispatches = await this.pipelines.prepare(recorded);
    const n = this.step.pack(rows, samples, tables);
    this.buffers.write("step", this.step.bytes, 0, n);
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

const sampleOf = (row, slot) => ({ row, slot, index: 0, params: NO_DRAW });

/** Ranges of the first `n` numbers of each part of a tensor of (parts, stride). */
function partsOf({ view, shape: [parts, stride] }, n) {
  return Array.from({ length: parts }, (_, i) => ({ view, at: i * stride * 4, bytes: n * 4 }));
}
