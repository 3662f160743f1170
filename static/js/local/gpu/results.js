// @ts-nocheck
// Results of a step: samples with their candidates, and the statistics of a plan that
// captures them.

/** Significant digits of a statistic: a float32 has seven, and a page has thousands of them. */
const DIGITS = 6;

/** Return sample `i` of a step's results. */
export function sampleOf(data, i, results) {
  const words = new Uint32Array(data, i * results.words * 4, results.words);
  const floats = new Float32Array(words.buffer, words.byteOffset, results.words);
  const read = (fields, at) =>
    Object.fromEntries(
      fields.map(([name, type], j) => [name, type === "u32" ? words[at + j] : floats[at + j]]),
    );
  const sample = read(results.sample, 0);
  const n = Math.min(sample.n_candidates, results.n_candidates);
  const { length } = results.candidate;
  const candidates = Array.from({ length: n }, (_, c) => {
    const candidate = read(results.candidate, results.sample.length + c * length);
    return { ...candidate, cut: results.cuts[candidate.cut] ?? "" };
  });
  const cut = results.cuts.slice(1).map((name) => sample[`mass_cut_${name}`]);
  return { ...sample, candidates, mass: [sample.mass_kept, ...cut] };
}

/** Statistics of the rows of a captured step. */
export class Captured {
  constructor(data, recorded, plan) {
    this.plan = plan;
    this.rows = recorded.rows;
    this.parts = Object.fromEntries(
      recorded.kept.map(({ name, at, parts, stride, dtype }) => {
        const Words = dtype === "u32" ? Uint32Array : Float32Array;
        return [name, { values: new Words(data, at, parts * stride), stride }];
      }),
    );
  }

  /**
   * Return the measurements of one row, `TokenStats` of gpu/events.py. `times`: LayerTimes of its step,
   * or of the last timed step before it; null: none.
   */
  row(row, position, nRows, times) {
    const { model, results } = this.plan;
    const { values, stride } = this.parts.stats;
    const at = row * stride;
    const names = results.stats_per_layer;
    const layers = Array.from({ length: model.n_layers }, (_, layer) => {
      const stats = names.map((name, i) => [
        name,
        significant(values[at + 1 + layer * names.length + i]),
      ]);
      return {
        ...Object.fromEntries(stats),
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

  routes(row) {
    const { expert_layers: layers, experts_per_token: n } = this.plan.model;
    return layers.map((layer, i) => ({
      layer,
      experts: this.part("chosen", i, row, n),
      gates: this.part("gates", i, row, n).map(significant),
    }));
  }

  /** The `n` numbers of a row in part `i`. */
  part(name, i, row, n) {
    const { values, stride } = this.parts[name];
    const at = i * stride + row * n;
    return [...values.subarray(at, at + n)];
  }
}

/**
 * Return the GPU times of the layers of a step that ran the token at `position`, LayerTimes: {position,
 * nRows, layers: [{attention_ms, mlp_ms}], embed, head}. Null: they were not measured. The passes of a
 * timed step are the embedding, attention and MLP of each layer, and the rest.
 */
export function layerTimes({ passes, nRows }, position) {
  if (!passes) return null;
  const layers = [];
  for (let i = 1; i + 1 < passes.length; i += 2)
    layers.push({ attention_ms: significant(passes[i]), mlp_ms: significant(passes[i + 1]) });
  return { position, nRows, layers, embed: passes[0], head: passes.at(-1) };
}

const significant = (value) => Number(value.toPrecision(DIGITS));
