// The shape of a plan file: the fields that this page reads (docs/plan-format.md has all of them).
//
// The bounds are far above every model that fits into a browser. They bound what a hostile file can
// make the page allocate or repeat; WebGPU itself checks what a shader may touch.

import { bool, list, mapOf, nullable, number, oneOf, optional, struct, text, tuple, whole } from "./shape.js";
import { SIZE_NAMES } from "./step-cost.js";

const MANY = 2 ** 20;
const MAX_BUFFER_BYTES = 4 * 2 ** 30;
const MAX_UNIFORM_BYTES = 2 ** 16;
const MAX_RESULT_BYTES = 2 ** 28;
const MAX_CONTEXT = 2 ** 22;
const MAX_GROUPS = 2 ** 16 - 1;
const MAX_ROWS = 2 ** 14;
const MAX_WIDTH = 2 ** 20;
const MAX_LAYERS = 2 ** 10;
const MAX_LORAS = 64;

const count = whole(0, Number.MAX_SAFE_INTEGER);
const index = whole(0, MANY);
/** @param {number} most */
const upTo = (most) => whole(0, most);
/** @param {number} most */
const from1 = (most) => whole(1, most);
const run = tuple(index, index);
const fields = list(tuple(text, oneOf("u32", "f32")), 64, 1);
const tensors = mapOf(struct({ view: index, shape: list(count, 8, 1), dtype: text }), MANY);

const model = struct({
  n_layers: from1(MAX_LAYERS),
  n_heads: from1(MAX_WIDTH),
  n_kv_heads: from1(MAX_WIDTH),
  head_dim: from1(MAX_WIDTH),
  hidden_size: from1(MAX_WIDTH),
  vocab_size: from1(2 ** 24),
  eos_ids: list(count, 64),
  expert_layers: list(upTo(MAX_LAYERS), MAX_LAYERS),
  n_experts: upTo(MAX_WIDTH),
  experts_per_token: upTo(MAX_WIDTH),
  loras: optional(list(struct({ name: text, rank: count, parameters: count, modules: count }), MAX_LORAS)),
});

const limits = struct({
  slots: from1(2 ** 10),
  inspection_slot: upTo(2 ** 10),
  context: from1(MAX_CONTEXT),
  max_rows: from1(MAX_ROWS),
  max_samples: from1(MAX_ROWS),
  max_captured_rows: upTo(MAX_ROWS),
  n_blocks: from1(MANY),
  block_tokens: from1(2 ** 10),
  max_blocks: from1(MAX_CONTEXT),
  window: nullable(from1(MAX_CONTEXT)),
});

const lookup = struct({
  rows: list(from1(MAX_ROWS), 64, 1),
  samples: list(upTo(MAX_ROWS), 64, 1),
  split_tokens: from1(MAX_CONTEXT),
  split_rows: upTo(MAX_ROWS),
});

const step = struct({
  bytes: from1(MAX_UNIFORM_BYTES),
  samples_at: upTo(MAX_UNIFORM_BYTES),
  rows_at: upTo(MAX_UNIFORM_BYTES),
  header: fields,
  sample: fields,
  row: fields,
  from_gpu: upTo(2 ** 32 - 1),
  greedy_below: optional(number),
  staged_kv: bool,
});

const results = struct({
  words: from1(MAX_UNIFORM_BYTES),
  sample: fields,
  candidate: fields,
  n_candidates: upTo(2 ** 10),
  cuts: list(text, 64),
  stats_per_layer: list(text, 64),
});

const weight = struct({
  dtype: oneOf("f32", "f16", "q8", "q4"),
  bytes: count,
  at: count,
  n: from1(2 ** 32),
  k: optional(upTo(2 ** 32)),
});

const buffer = struct({
  name: text,
  bytes: from1(MAX_BUFFER_BYTES),
  uniform: optional(bool),
  weight: optional(index),
  first: optional(count),
  rows: optional(count),
  interleaved: optional(from1(64)),
});

const kernel = struct({
  name: text,
  source: index,
  constants: mapOf(number, 256),
  bindings: list(tuple(upTo(2 ** 10), oneOf("uniform", "storage", "read-only-storage")), 64),
  workgroup: tuple(...Array(3).fill(from1(2 ** 10))),
});

const recorded = struct({
  kind: text,
  rows: from1(MAX_ROWS),
  samples: upTo(MAX_ROWS),
  splits: from1(MAX_ROWS),
  dispatches: list(run, MANY),
  result_bytes: upTo(MAX_RESULT_BYTES),
  interventions: optional(bool),
  loras: optional(bool),
  marks: optional(list(tuple(index, text), MANY)),
  kept: optional(
    list(
      struct({
        name: text,
        view: index,
        at: upTo(MAX_RESULT_BYTES),
        parts: upTo(MAX_RESULT_BYTES),
        stride: upTo(MAX_RESULT_BYTES),
        dtype: oneOf("u32", "f32"),
      }),
      64,
    ),
  ),
  tensors: optional(tensors),
});

const terms = list(tuple(number, oneOf(...SIZE_NAMES), list(number, 2)), 64);

export const planShape = struct({
  profile: text,
  needs: struct({ bytes: count, features: list(text, 64), limits: mapOf(count, 64) }),
  model,
  limits,
  lookup,
  step,
  results,
  tensors,
  weights: list(weight, MANY),
  buffers: list(buffer, MANY),
  views: list(tuple(index, count, count, text, text, list(count, 8)), MANY),
  sources: list(text, MANY),
  kernels: list(kernel, MANY),
  costs: list(tuple(terms, terms), MANY),
  dispatches: list(
    tuple(
      text,
      index,
      tuple(...Array(3).fill(from1(MAX_GROUPS))),
      list(index, 64),
      nullable(index),
    ),
    MANY,
  ),
  plans: list(recorded, MANY, 1),
});
