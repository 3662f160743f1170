// weights = softmax(score(q, k)) over the positions that each row sees, for a range of the keys:
// the weights that attention.wgsl does not store, with the same bits.
//
// One workgroup per (head, row), lanes over the keys. It walks all visible keys for the sum, then
// the keys of the range for their weights. Used by inspection only.
//
// q             [n_rows][Q_STRIDE / 4] vec4
// k_pool, block_tables  see lib/paging.wgsl
// masked        see attention.wgsl (not bound without MASKED)
// weights       [n_rows][N_HEADS][range.n]; 0 for keys that the row does not see
// use: step
// use: words
// use: kv
// use: cached_keys
// use: paging
// use: fma4
// use: softmax_state
// use: last_seen
// use: key_scores
override N_HEADS: u32;
override HEAD_VEC4S: u32; // head_dim / 4
override GROUP: u32;      // heads that share keys
override Q_STRIDE: u32;
override SCALE: f32; // of q · k, times log2(e)
override WINDOW: u32 = 0u; // keys that a row sees, its own and those before it; 0: all
override LANES: u32; // a power of two
override MASKED: bool = false;

struct Range {
  first: u32, // position of the first key
  n: u32,
}

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<uniform> range: Range;
@group(0) @binding(2) var<storage, read> q: array<Load16>;
@group(0) @binding(3) var<storage, read> k_pool: array<Cached>;
@group(0) @binding(4) var<storage, read> block_tables: array<u32>;
@group(0) @binding(5) var<storage, read> masked: array<vec2f>; // optional
@group(0) @binding(6) var<storage, read_write> weights: array<f32>;

var<workgroup> lane_states: array<State, LANES>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let head = group.x;
  let row = group.y;
  if (row >= step.n_rows) { return; }
  let position = step.rows[row].position;

  let oldest = select(0u, position + 1u - WINDOW, WINDOW > 0u && position >= WINDOW);
  let last = last_seen(row);
  var state = State(LOWEST, 0.0, 0.0);
  for (var key = oldest + lane; key <= last; key += LANES) {
    if (is_unmasked(row, head, key)) {
      state = merged(state, State(score(row, head, key), 1.0, 0.0));
    }
  }
  lane_states[lane] = state;
  workgroupBarrier();
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    if (lane < half) { lane_states[lane] = merged(lane_states[lane], lane_states[lane + half]); }
    workgroupBarrier();
  }
  let all = lane_states[0];

  let at = (row * N_HEADS + head) * range.n;
  for (var i = lane; i < range.n; i += LANES) {
    let key = range.first + i;
    var weight = 0.0;
    if (key >= oldest && key <= last && is_unmasked(row, head, key)) {
      weight = exp2(score(row, head, key) - all.maximum) / all.sum;
    }
    weights[at + i] = weight;
  }
}

// True if the head may attend to the key in the row.
fn is_unmasked(row: u32, head: u32, key: u32) -> bool {
  if (!MASKED) { return true; }
  let ends = vec2u(masked[step.rows[row].slot * N_HEADS + head]);
  return key < ends.x || key >= ends.y;
}

// Score of one key in bits (times log2(e)).
fn score(row: u32, head: u32, key: u32) -> f32 {
  let block = block_tables[step.rows[row].slot * MAX_BLOCKS + key / BLOCK_TOKENS];
  let chunks = HEAD_VEC4S / CACHED_VEC4S;
  let k_at = cached_at(block, key, head / GROUP, chunks);
  let q_at = row * (Q_STRIDE / 4u) + head * HEAD_VEC4S;
  var sum = 0.0;
  for (var c = 0u; c < chunks; c++) {
    let k = key_numbers(k_at + c);
    let d = q_at + c * CACHED_VEC4S;
    sum = dot_add(floats_of(q[d]), k[0], sum);
    if (CACHED_VEC4S == 2u) {
      sum = dot_add(floats_of(q[d + 1u]), k[CACHED_VEC4S - 1u], sum);
    }
  }
  return scores_of(vec4f(sum), vec4f(position_bias(row, head, key))).x;
}
