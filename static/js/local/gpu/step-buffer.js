// @ts-nocheck
// The uniform buffer of a step, packed as the plan file lays it out (gpu/ops/step_buffer.py).

/** Token of a row: the id that its slot sampled last, which the host may not have read yet. */
export const FROM_GPU = -1;
/** Temperatures below this are greedy: the result is the same, and dividing by them overflows. */
const GREEDY_BELOW = 1e-4;
const LOW_WORD = 0xffffffffn;

export class StepBuffer {
  constructor({ step, limits }) {
    this.layout = step;
    this.blockTokens = limits.block_tokens;
    this.bytes = new ArrayBuffer(step.bytes);
    this.words = { u32: new Uint32Array(this.bytes), f32: new Float32Array(this.bytes) };
  }

  /**
   * Pack a step; return how many bytes of `bytes` count.
   *
   * rows     [{slot, position, token}]
   * samples  [{row, slot, index, params}], with the other words of a sample where they are not 0;
   *          params.seed is a BigInt
   * tables   the KV blocks of each slot, in order
   */
  pack(rows, samples, tables) {
    const { layout } = this;
    this.put(0, layout.header, { n_rows: rows.length, n_samples: samples.length });
    samples.forEach((sample, i) =>
      this.put(layout.samples_at + i * 4 * layout.sample.length, layout.sample, sampleWords(sample)),
    );
    rows.forEach((row, i) =>
      this.put(layout.rows_at + i * 4 * layout.row.length, layout.row, {
        ...row,
        token: row.token === FROM_GPU ? layout.from_gpu : row.token,
        block: layout.staged_kv ? i : tables[row.slot][Math.floor(row.position / this.blockTokens)],
      }),
    );
    return layout.rows_at + rows.length * 4 * layout.row.length;
  }

  put(at, fields, values) {
    fields.forEach(([name, type], i) => {
      this.words[type][at / 4 + i] = values[name] ?? 0;
    });
  }
}

function sampleWords({ params, index, ...words }) {
  const temperature = params.temperature < GREEDY_BELOW ? 0 : params.temperature;
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
