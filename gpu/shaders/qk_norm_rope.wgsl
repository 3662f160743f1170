// q, keys and values from projected heads, with RMSNorm of queries and keys before RoPE.
//
//   q, k    rope(x · gain / sqrt(mean(x²) + EPS)), the mean over the head or, with WHOLE, over all
//           query heads (all key heads) of the row
//   v       x
//
// Does what qkv.wgsl does after its matmul, for models with QK norm: there a head spans several
// tiles. One workgroup per (head, row), lanes over its pairs of numbers; the order of the sums
// depends on LANES alone.
//
// projected  [rows][P_STRIDE / 2] pairs: query heads, key heads, value heads
// gains      pairs: of queries, then of keys; of one head, or with WHOLE of all
// rope_cos_sin  [context][HALF] vec4: (cos, sin) of two numbers (not bound if HALF is 0)
// q          [rows][Q_STRIDE / 2] pairs
// k_pool, v_pool  see lib/paging.wgsl, as pairs
// use: step
// use: paging
// use: kv_pair
override PAIRS: u32; // pairs in a head: head_dim / 2
override HALF: u32;  // pairs in half of the rotated part: rotary_dim / 4
override N_HEADS: u32;
override P_STRIDE: u32;
override Q_STRIDE: u32;
override EPS: f32;
override WHOLE: bool = false;
override LANES: u32; // a power of two

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> projected: array<vec2f>;
@group(0) @binding(2) var<storage, read> gains: array<vec2f>;
@group(0) @binding(3) var<storage, read> rope_cos_sin: array<vec4f>; // optional
@group(0) @binding(4) var<storage, read_write> q: array<vec2f>;
@group(0) @binding(5) var<storage, read_write> k_pool: array<Pair>;
@group(0) @binding(6) var<storage, read_write> v_pool: array<Pair>;

var<workgroup> lane_sums: array<f32, LANES>;

// RMSNorm scale of a query or key head.
fn scale_of(head: u32, row_at: u32, lane: u32) -> f32 {
  var first = head;
  var n = 1u;
  if (WHOLE) {
    first = select(N_HEADS, 0u, head < N_HEADS);
    n = select(N_KV_HEADS, N_HEADS, head < N_HEADS);
  }
  var squares = 0.0;
  for (var i = lane; i < n * PAIRS; i += LANES) {
    let v = projected[row_at + first * PAIRS + i];
    squares = fma(v.x, v.x, fma(v.y, v.y, squares));
  }
  lane_sums[lane] = squares;
  workgroupBarrier();
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    if (lane < half) { lane_sums[lane] += lane_sums[lane + half]; }
    workgroupBarrier();
  }
  return 1.0 / sqrt(lane_sums[0] / f32(n * PAIRS * 2u) + EPS);
}

// Offset of the gains of a query or key head.
fn gains_at(head: u32) -> u32 {
  if (WHOLE) { return head * PAIRS; }
  return select(PAIRS, 0u, head < N_HEADS);
}

fn store(head: u32, row: u32, pair: u32, value: vec2f) {
  if (head < N_HEADS) {
    q[row * (Q_STRIDE / 2u) + head * PAIRS + pair] = value;
    return;
  }
  let kv_head = (head - N_HEADS) % N_KV_HEADS;
  let place = step.rows[row];
  let at = 2u * cached_at(place.block, place.position, kv_head, PAIRS / 2u) + pair;
  if (head < N_HEADS + N_KV_HEADS) {
    k_pool[at] = pair_of(value);
  } else {
    v_pool[at] = pair_of(value);
  }
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let head = group.x;
  let row = group.y;
  if (row >= step.n_rows) { return; }
  let row_at = row * (P_STRIDE / 2u);
  let start = row_at + head * PAIRS;
  if (head >= N_HEADS + N_KV_HEADS) {
    for (var pair = lane; pair < PAIRS; pair += LANES) {
      store(head, row, pair, projected[start + pair]);
    }
    return;
  }
  let scale = scale_of(head, row_at, lane);
  let gain = gains_at(head);
  for (var pair = lane; pair < PAIRS; pair += LANES) {
    if (pair >= HALF && pair < 2u * HALF) { continue; } // stored with the other half
    let low = projected[start + pair] * scale * gains[gain + pair];
    if (pair >= HALF) {
      store(head, row, pair, low);
      continue;
    }
    let high = projected[start + pair + HALF] * scale * gains[gain + pair + HALF];
    let cos_sin = rope_cos_sin[step.rows[row].position * HALF + pair];
    let cosines = cos_sin.xz;
    let sines = cos_sin.yw;
    store(head, row, pair, fma(low, cosines, -high * sines));
    store(head, row, pair + HALF, fma(high, cosines, low * sines));
  }
}
