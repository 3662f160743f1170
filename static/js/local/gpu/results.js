// Results of a step: samples with their candidates, and the statistics of a plan that
// captures them.

/** Significant digits of a statistic: a float32 has seven, and a page has thousands of them. */
const DIGITS = 6;

/**
 * What a step drew, the times of its layers, and all that was read of it: `gpu` milliseconds of the whole
 * step and `passes` of its parts, null where they were not measured.
 *
 * @typedef {ReturnType<typeof sampleOf>} DrawnSample
 * @typedef {NonNullable<ReturnType<typeof layerTimes>>} LayerTimes
 * @typedef {{samples: DrawnSample[], captured: Captured | null, nRows: number}} StepNumbers
 * @typedef {{passes: number[] | null, gpu: number | null, encode: number, wait: number, read: number}} PassTimes
 * @typedef {StepNumbers & PassTimes} StepResult
 */

/**
 * Return sample `i` of a step's results.
 *
 * @param {ArrayBuffer} data
 * @param {number} i
 * @param {Exported.ResultLayout} results
 */
export function sampleOf(data, i, results) {
  const words = new Uint32Array(data, i * results.words * 4, results.words);
  const floats = new Float32Array(words.buffer, words.byteOffset, results.words);
  /** @type {(fields: Exported.ResultLayout["sample"], at: number) => Record<string, number>} */
  const read = (fields, at) =>
    Object.fromEntries(
      fields.map(([name, type], j) => [name, type === "u32" ? words[at + j] : floats[at + j]]),
    );
  const sample = read(results.sample, 0);
  const n = Math.min(sample.n_candidates, results.n_candidates);
  const { length } = results.candidate;
  const candidates = Array.from({ length: n }, (_, c) => {
    const { id, before, after, cut } = read(results.candidate, results.sample.length + c * length);
    return { id, before, after, cut: results.cuts[cut] ?? "" };
  });
  const { id, logprob, probability, rank, n_kept, draw, mass_kept, allowed, green = 0 } = sample;
  const mass = [mass_kept, ...results.cuts.slice(1).map((name) => sample[`mass_cut_${name}`])];
  return { id, logprob, probability, rank, n_kept, draw, candidates, mass, allowed, green };
}

/** Statistics of the rows of a captured step. */
export class Captured {
  /** @param {ArrayBuffer} data @param {Exported.RecordedStep} recorded @param {Exported.PlanFile} plan */
  constructor(data, recorded, plan) {
    this.plan = plan;
    this.parts = Object.fromEntries(
      (recorded.kept ?? []).map(({ name, at, parts, stride, dtype }) => {
        const Words = dtype === "u32" ? Uint32Array : Float32Array;
        return [name, { values: new Words(data, at, parts * stride), stride }];
      }),
    );
  }

  /**
   * Return the measurements of one row. `times`: those of its step, or of the last timed step before it.
   *
   * @param {number} row
   * @param {number} position
   * @param {number} nRows
   * @param {LayerTimes | null} times
   * @returns {ToPage.TokenStats}
   */
  row(row, position, nRows, times) {
    const { model, results } = this.plan;
    const { values, stride } = this.parts.stats;
    const at = row * stride;
    const names = results.stats_per_layer;
    const layers = Array.from({ length: model.n_layers }, (_, layer) => {
      /** @param {string} name */
      const stat = (name) =>
        names.includes(name) ? significant(values[at + 1 + layer * names.length + names.indexOf(name)]) : null;
      return {
        residual: stat("residual"),
        attention: stat("attention"),
        mlp: stat("mlp"),
        attention_cosine: stat("attention_cosine"),
        mlp_cosine: stat("mlp_cosine"),
        entropy: this.part("entropy", layer, row, model.n_heads).map(significant),
        attention_ms: times?.layers[layer].attention_ms ?? null,
        mlp_ms: times?.layers[layer].mlp_ms ?? null,
      };
    });
    const stats = {
      position,
      embedding: significant(values[at]),
      layers,
      n_rows: times?.nRows ?? nRows,
      embed_ms: times?.embed ?? null,
      head_ms: times?.head ?? null,
      timed_at: times?.position ?? null,
    };
    return model.expert_layers.length ? { ...stats, routes: this.routes(row) } : stats;
  }

  /** @param {number} row */
  routes(row) {
    const { expert_layers: layers, experts_per_token: n } = this.plan.model;
    return layers.map((layer, i) => ({
      layer,
      experts: this.part("chosen", i, row, n),
      gates: this.part("gates", i, row, n).map(significant),
    }));
  }

  /**
   * The `n` numbers of a row in part `i`.
   *
   * @param {string} name
   * @param {number} i
   * @param {number} row
   * @param {number} n
   */
  part(name, i, row, n) {
    const { values, stride } = this.parts[name];
    const at = i * stride + row * n;
    return [...values.subarray(at, at + n)];
  }
}

/**
 * Return the GPU times of the layers of a step that ran the token at `position`. Null: they were not
 * measured. The passes of a timed step are the embedding, attention and MLP of each layer, and the rest.
 *
 * @param {Pick<StepResult, "passes" | "nRows">} result
 * @param {number} position
 */
export function layerTimes({ passes, nRows }, position) {
  if (!passes) return null;
  const layers = [];
  for (let i = 1; i + 1 < passes.length; i += 2)
    layers.push({ attention_ms: significant(passes[i]), mlp_ms: significant(passes[i + 1]) });
  return { position, nRows, layers, embed: passes[0], head: passes[passes.length - 1] };
}

/** @param {number} value */
const significant = (value) => Number(value.toPrecision(DIGITS));
