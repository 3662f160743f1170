// q, keys and values of every row: heads of [norm](x) · weightᵀ [+ bias], RoPE (Su et al. 2021,
// halves paired as in Hugging Face) on queries and keys, keys and values written to the paged
// cache.
//
//   out[d]        = in[d] · cos − in[d + half] · sin     d < half = ROTARY_DIM / 2
//   out[d + half] = in[d + half] · cos + in[d] · sin
//   out[d]        = in[d]                                d ≥ ROTARY_DIM
//
// The weight holds the query heads, the key heads, the value heads. In the rotated part of query
// and key heads its rows come in quads (d, d + 1, d + half, d + half + 1), so that a tile holds
// both numbers of a rotation (gpu.checkpoint.weights, `rotary_order`).
//
// x, weight, gain  see lib/matmul_tile.wgsl; the shard is rows FIRST .. FIRST + N - 1 of the weight
// bias       [rows of the weight / 4] vec4 in the same order, or one per row, BIAS_STRIDE apart
//            (not bound without BIAS)
// rope_cos_sin  [context][ROTARY_DIM / 4] vec4: (cos, sin) of two pairs (not bound if that is 0)
// q          [rows][Q_STRIDE / 2] pairs (not bound if N_HEADS is 0: the weight has no query heads)
// k_pool, v_pool  see lib/paging.wgsl, as pairs
// use: step
// use: tile_lanes
// use: matmul_tile
// use: paging
// use: kv_pair
override FIRST: u32 = 0u;
override BIAS: bool = false;
override BIAS_STRIDE: u32 = 0u;
override HEAD_DIM: u32;
override ROTARY_DIM: u32; // a multiple of 4
override N_HEADS: u32; // query heads of the weight
override Q_STRIDE: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(4) var<storage, read> bias: array<vec4f>; // optional
@group(0) @binding(5) var<storage, read> rope_cos_sin: array<vec4f>; // optional
@group(0) @binding(6) var<storage, read_write> q: array<vec2f>; // optional
@group(0) @binding(7) var<storage, read_write> k_pool: array<Pair>;
@group(0) @binding(8) var<storage, read_write> v_pool: array<Pair>;

fn source_row(row: u32) -> u32 { return row; }

fn weight_row(column: u32) -> u32 { return column; }

// (a, b) rotated by the angle of (cos, sin).
fn rope(a: f32, b: f32, cos_sin: vec2f) -> vec2f {
  return vec2f(fma(a, cos_sin.x, -b * cos_sin.y), fma(b, cos_sin.x, a * cos_sin.y));
}

// Stores weight rows d to d + 3 of a head: two pairs of the head, `low` and `high`.
fn store(row: u32, head: u32, d: u32, four: vec4f) {
  let position = step.rows[row].position;
  let has_rope = head < N_HEADS + N_KV_HEADS && d < ROTARY_DIM;
  var low = four.xy;
  var high = four.zw;
  var low_at = d / 2u; // in pairs of the head
  var high_at = low_at + 1u;
  if (has_rope) {
    let cos_sin = rope_cos_sin[position * (ROTARY_DIM / 4u) + d / 4u];
    let first = rope(four.x, four.z, cos_sin.xy);
    let second = rope(four.y, four.w, cos_sin.zw);
    low = vec2f(first.x, second.x);
    high = vec2f(first.y, second.y);
    low_at = d / 4u;
    high_at = low_at + ROTARY_DIM / 4u;
  }
  if (head < N_HEADS) {
    let at = row * (Q_STRIDE / 2u) + head * (HEAD_DIM / 2u);
    q[at + low_at] = low;
    q[at + high_at] = high;
    return;
  }
  let kv_head = (head - N_HEADS) % N_KV_HEADS;
  let at = 2u * cached_at(step.rows[row].block, position, kv_head, HEAD_DIM / 4u);
  if (head < N_HEADS + N_KV_HEADS) {
    k_pool[at + low_at] = pair_of(low);
    k_pool[at + high_at] = pair_of(high);
  } else {
    v_pool[at + low_at] = pair_of(low);
    v_pool[at + high_at] = pair_of(high);
  }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  if (group.y * GROUP_M >= step.n_rows) { return; } // the whole workgroup
  matmul_tile(tile_row(group.y, lane), tile_column(group.x, lane), step.n_rows, lane);
  if (!has_sums(lane)) { return; }
  let first_m = sums_row(group.y, lane);
  let first_n = sums_column(group.x, lane);
  // A copy to index: drivers keep arrays indexed by a variable in memory.
  var found = sums;
  for (var i = 0u; i < SUMS_M; i++) {
    let row = first_m + i;
    if (row >= step.n_rows) { break; }
    let scale = vec4f(row_scale(i));
    for (var j = 0u; j < SUMS_N; j += 4u) {
      if (first_n + j >= N) { break; }
      let column = FIRST + first_n + j;
      let s = i * SUMS_N + j;
      let four = vec4f(found[s], found[s + 1u], found[s + 2u], found[s + 3u]);
      var scaled = four * scale;
      if (BIAS) { scaled = fma(four, scale, bias[(row * BIAS_STRIDE + column) / 4u]); }
      store(row, column / HEAD_DIM, column % HEAD_DIM, scaled);
    }
  }
}
