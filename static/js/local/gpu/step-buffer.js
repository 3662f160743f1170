// The uniform buffer of a step, packed as the plan file lays it out (gpu/ops/step_buffer.py).

/** Token of a row: the id that its slot sampled last, which the host may not have read yet. */
export const FROM_GPU = -1;
const LOW_WORD = 0xffffffffn;

/**
 * The temperature that acts: below the plan's threshold it is greedy, 0.
 *
 * @param {Pick<SamplerParams, "temperature">} params
 * @param {Exported.StepLayout} layout
 */
export const actingTemperature = ({ temperature }, { greedy_below: least = 0 }) =>
  temperature < least ? 0 : temperature;

/**
 * A row of a step, and a sample: the row whose next token is drawn, and the words of a sample that are
 * not 0.
 *
 * @typedef {{slot: number, position: number, token: number}} StepRow
 * @typedef {Pick<SamplerParams, "seed" | "first_index" | "temperature" | "repetition_penalty" | "logit_bias">} NeededParams
 * @typedef {{row: number, slot: number, index: number, params: NeededParams & Partial<SamplerParams>}} StepSample
 */

export class StepBuffer {
  /** @param {Pick<Exported.PlanFile, "step" | "limits">} plan */
  constructor({ step, limits }) {
    this.layout = step;
    this.blockTokens = limits.block_tokens;
    this.bytes = new ArrayBuffer(step.bytes);
    this.words = { u32: new Uint32Array(this.bytes), f32: new Float32Array(this.bytes) };
  }

  /**
   * Return the bytes of a step, which the next one overwrites. `tables`: the KV blocks of each slot, in
   * order.
   *
   * @param {StepRow[]} rows
   * @param {StepSample[]} samples
   * @param {number[][]} tables
   */
  pack(rows, samples, tables) {
    const { layout } = this;
    this.put(0, layout.header, { n_rows: rows.length, n_samples: samples.length });
    samples.forEach((sample, i) =>
      this.put(layout.samples_at + i * 4 * layout.sample.length, layout.sample, sampleWords(sample, layout)),
    );
    rows.forEach((row, i) =>
      this.put(layout.rows_at + i * 4 * layout.row.length, layout.row, {
        ...row,
        token: row.token === FROM_GPU ? layout.from_gpu : row.token,
        block: layout.staged_kv ? i : tables[row.slot][Math.floor(row.position / this.blockTokens)],
      }),
    );
    return new Uint8Array(this.bytes, 0, layout.rows_at + rows.length * 4 * layout.row.length);
  }

  /**
   * @param {number} at
   * @param {Exported.StepLayout["row"]} fields
   * @param {Record<string, unknown>} values
   */
  put(at, fields, values) {
    fields.forEach(([name, type], i) => {
      this.words[type][at / 4 + i] = Number(values[name] ?? 0);
    });
  }
}

/** @param {StepSample} sample @param {Exported.StepLayout} layout */
function sampleWords({ params, index, ...words }, layout) {
  const temperature = actingTemperature(params, layout);
  return {
    ...params,
    ...words,
    seed_low: Number(params.seed & LOW_WORD),
    seed_high: Number(params.seed >> 32n),
    index: params.first_index + index,
    temperature,
    inverse_temperature: 1 / (temperature || 1),
    inverse_penalty: 1 / params.repetition_penalty,
    n_biases: params.logit_bias.length,
  };
}
