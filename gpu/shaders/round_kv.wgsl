// k_pool, v_pool = the keys and values of every row in a cache of floats, rounded in place to a
// quantised storage and back (gpu/kv/formats.py): what attention reads of a quantised cache.
//
// One workgroup per (head, row): key heads, then value heads. Used by inspection only.
//
// block_tables    see lib/paging.wgsl
// k_pool, v_pool  pairs, see lib/kv_pair_f32.wgsl and lib/kv_pair_f16.wgsl
// use: step
// use: paging
// use: kv_pair
// use: kv_packed
// use: packed_q8
// use: packed_q4
// use: packed_nl4
// use: quantize_head
// prelude: const HEAD_DIM, PACK_BLOCK
override K_STORAGE: u32; // format of keys: 0 Q8, 1 Q4, 3 as they are
override V_STORAGE: u32;
override LANES: u32;

const AS_IT_IS = 3u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> block_tables: array<u32>;
@group(0) @binding(2) var<storage, read_write> k_pool: array<Pair>;
@group(0) @binding(3) var<storage, read_write> v_pool: array<Pair>;

var<workgroup> numbers: array<f32, HEAD_DIM>;
var<workgroup> scale_mins: array<vec2f, HEAD_BLOCKS>; // rounded to float16

fn load(is_key: bool, at: u32) -> vec2f {
  if (is_key) { return from_pair(k_pool[at]); }
  return from_pair(v_pool[at]);
}

fn store(is_key: bool, at: u32, v: vec2f) {
  if (is_key) { k_pool[at] = pair_of(v); } else { v_pool[at] = pair_of(v); }
}

// Numbers 8i to 8i + 7 of the head, rounded.
fn rounded(kind: u32, i: u32) -> Numbers {
  let scale_min = scale_mins[CHUNK * i / PACK_BLOCK];
  if (kind == 0u) {
    return from_q8(vec2u(data_word(kind, 2u * i), data_word(kind, 2u * i + 1u)), scale_min.x);
  }
  return from_q4(data_word(kind, i), scale_min);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.y;
  let is_key = group.x < N_KV_HEADS;
  let kind = select(V_STORAGE, K_STORAGE, is_key);
  if (row >= step.n_rows || kind == AS_IT_IS) { return; } // the whole workgroup
  let here = step.rows[row];
  let block = block_tables[here.slot * MAX_BLOCKS + here.position / BLOCK_TOKENS];
  let first = 2u * cached_at(block, here.position, group.x % N_KV_HEADS, HEAD_DIM / 4u);
  for (var i = lane; i < HEAD_DIM / 2u; i += LANES) {
    let pair = load(is_key, first + i);
    numbers[2u * i] = pair.x;
    numbers[2u * i + 1u] = pair.y;
  }
  workgroupBarrier();
  for (var b = lane; b < HEAD_BLOCKS; b += LANES) { scale_mins[b] = scale_min_of(kind, b); }
  workgroupBarrier();
  for (var i = lane; i < HEAD_DIM / CHUNK; i += LANES) {
    let found = rounded(kind, i);
    let at = first + CHUNK / 2u * i;
    store(is_key, at, found[0].xy);
    store(is_key, at + 1u, found[0].zw);
    store(is_key, at + 2u, found[1].xy);
    store(is_key, at + 3u, found[1].zw);
  }
}
