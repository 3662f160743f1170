// out = softmax(q · kᵀ · SCALE) · v over the positions up to the row's own.
//
// One workgroup for each (head, row). Lane l takes the keys l, l + LANES, l + 2·LANES … and keeps
// its own running softmax (maximum, sum, weighted values; Milakov & Gimelshein 2018, "Online
// normalizer calculation for softmax"); the lanes are merged once at the end, in lane order. The
// result depends on the position and LANES alone, not on what else is in the step.
//
// q             [n_rows][Q_STRIDE / 4] vec4
// k_pool, v_pool, block_tables  see lib/paging.wgsl
// out           [n_rows][Q_STRIDE / 4] vec4
// entropy       [n_rows][N_HEADS] −Σ p log2 p in bits (any writable buffer when not CAPTURE)
// use: step
// use: kv
// use: paging
// use: fma4
// prelude: const HEAD_VEC4S (head_dim / 4)
override N_HEADS: u32;
override Q_STRIDE: u32;
override SCALE: f32; // 1 / sqrt(head_dim)
override LANES: u32 = 32u;
override CAPTURE: bool = false;

const LOWEST = -3.0e38;
const LOG2_E = 1.4426950408889634;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> q: array<vec4f>;
@group(0) @binding(2) var<storage, read> k_pool: array<Cached>;
@group(0) @binding(3) var<storage, read> v_pool: array<Cached>;
@group(0) @binding(4) var<storage, read> block_tables: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> entropy: array<f32>;

var<workgroup> lane_maximum: array<f32, LANES>;
var<workgroup> lane_sum: array<f32, LANES>;
var<workgroup> lane_weighted: array<f32, LANES>; // Σ exp(s − maximum) · (s − maximum)
var<workgroup> lane_values: array<vec4f, LANES * HEAD_VEC4S>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let head = group.x;
  let row = group.y;
  if (row >= step.n_rows) { return; }
  let n_keys = step.rows[row].position + 1u;
  let table = step.rows[row].slot * MAX_BLOCKS;
  let kv_head = head / (N_HEADS / N_KV_HEADS);
  let q_at = row * (Q_STRIDE / 4u) + head * HEAD_VEC4S;

  var query: array<vec4f, HEAD_VEC4S>;
  for (var i = 0u; i < HEAD_VEC4S; i++) { query[i] = q[q_at + i] * SCALE; }

  var maximum = LOWEST;
  var sum = 0.0;
  var weighted = 0.0;
  var values: array<vec4f, HEAD_VEC4S>;
  for (var key = lane; key < n_keys; key += LANES) {
    let at = cached_at(block_tables[table + key / BLOCK_TOKENS], key, kv_head, HEAD_VEC4S);
    var score = 0.0;
    for (var i = 0u; i < HEAD_VEC4S; i++) {
      score = dot_add(query[i], unpack_cached(k_pool[at + i]), score);
    }
    let new_maximum = max(maximum, score);
    let shrink = exp(maximum - new_maximum);
    let share = exp(score - new_maximum);
    if (CAPTURE) {
      // The old terms' (s − maximum) all move by maximum − new_maximum.
      let moved = select(0.0, sum * (maximum - new_maximum), sum > 0.0);
      weighted = fma(shrink, weighted + moved, share * (score - new_maximum));
    }
    maximum = new_maximum;
    sum = fma(sum, shrink, share);
    for (var i = 0u; i < HEAD_VEC4S; i++) {
      values[i] = fma(vec4f(share), unpack_cached(v_pool[at + i]), values[i] * shrink);
    }
  }
  lane_maximum[lane] = maximum;
  lane_sum[lane] = sum;
  lane_weighted[lane] = weighted;
  for (var i = 0u; i < HEAD_VEC4S; i++) { lane_values[lane * HEAD_VEC4S + i] = values[i]; }
  workgroupBarrier();

  let n_lanes = min(LANES, n_keys); // lanes that had a key
  var top = LOWEST;
  for (var l = 0u; l < n_lanes; l++) { top = max(top, lane_maximum[l]); }
  var total = 0.0;
  for (var l = 0u; l < n_lanes; l++) {
    total = fma(lane_sum[l], exp(lane_maximum[l] - top), total);
  }
  for (var i = lane; i < HEAD_VEC4S; i += LANES) {
    var merged = vec4f();
    for (var l = 0u; l < n_lanes; l++) {
      let share = exp(lane_maximum[l] - top);
      merged = fma(vec4f(share), lane_values[l * HEAD_VEC4S + i], merged);
    }
    out[q_at + i] = merged / total;
  }
  if (CAPTURE && lane == 0u) {
    // H = log(total) − Σ exp(s − top) · (s − top) / total
    var terms = 0.0;
    for (var l = 0u; l < n_lanes; l++) {
      let below = lane_maximum[l] - top;
      terms = fma(exp(below), lane_weighted[l] + lane_sum[l] * below, terms);
    }
    entropy[row * N_HEADS + head] = max(0.0, (log(total) - terms / total) * LOG2_E);
  }
}
