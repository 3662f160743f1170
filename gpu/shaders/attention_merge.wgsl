// out = attention merged from its splits of the keys (split-KV, Flash-Decoding), in their order.
//
// Used after attention.wgsl with PARTIAL, for steps of few rows with long contexts.
//
// values   [n_splits][SPLIT_ROWS][Q_STRIDE / 4] vec4
// states   [n_splits][SPLIT_ROWS][N_HEADS] State
// out      [n_rows][Q_STRIDE / 4] vec4
// entropy  [n_rows][N_HEADS] bits (not bound without CAPTURE)
// use: step
// use: softmax_state
// prelude: const SPLIT_ROWS (most rows of a step whose attention is split), MERGE_AHEAD (splits
// that are loaded before the first of them is merged)
override N_HEADS: u32;
override HEAD_VEC4S: u32; // head_dim / 4
override Q_STRIDE: u32;
override SPLIT: u32;
override CAPTURE: bool = false;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> values: array<vec4f>;
@group(0) @binding(2) var<storage, read> states: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> entropy: array<f32>; // optional

fn state_of(split: u32, row: u32, head: u32) -> State {
  let at = ((split * SPLIT_ROWS + row) * N_HEADS + head) * 3u;
  return State(states[at], states[at + 1u], states[at + 2u]);
}

fn values_of(split: u32, row: u32, column: u32) -> vec4f {
  return values[(split * SPLIT_ROWS + row) * (Q_STRIDE / 4u) + column];
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let column = id.x;
  let row = id.y;
  if (column >= N_HEADS * HEAD_VEC4S || row >= step.n_rows) { return; }
  let head = column / HEAD_VEC4S;
  let n_splits = step.rows[row].position / SPLIT + 1u;

  var state = state_of(0u, row, head);
  var v = values_of(0u, row, column);
  for (var first = 1u; first < n_splits; first += MERGE_AHEAD) {
    var next = array<State, MERGE_AHEAD>();
    var next_values = array<vec4f, MERGE_AHEAD>();
    for (var i = 0u; i < MERGE_AHEAD; i++) {
      let split = min(first + i, n_splits - 1u);
      next[i] = state_of(split, row, head);
      next_values[i] = values_of(split, row, column);
    }
    for (var i = 0u; i < MERGE_AHEAD; i++) {
      if (first + i < n_splits) {
        v = merged_values(state, v, next[i], next_values[i]);
        state = merged(state, next[i]);
      }
    }
  }
  out[row * (Q_STRIDE / 4u) + column] = v / state.sum;
  if (CAPTURE && column % HEAD_VEC4S == 0u) {
    entropy[row * N_HEADS + head] = entropy_bits(state);
  }
}
