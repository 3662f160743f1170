// k_pool, v_pool = the new keys and values of every row, quantised into the paged cache
// (gpu/kv/formats.py). HADAMARD: they are rotated before (lib/hadamard.wgsl), and q in place.
//
// Used after qkv or qk_norm_rope. One workgroup per (head, row): query heads with HADAMARD, key
// heads, value heads. One lane finds the scale and minimum of a block (lib/quantize_head.wgsl), so
// that the bits of a key depend on its own numbers only.
//
// block_tables          see lib/paging.wgsl
// new_keys, new_values  [n_rows][N_KV_HEADS][HEAD_DIM]
// q                     [n_rows][Q_STRIDE]
// k_pool, v_pool        words, see lib/packed_heads.wgsl
// use: step
// use: paging
// use: kv_packed
// use: packed_q8
// use: packed_q4
// use: packed_nl4
// use: hadamard
// use: quantize_head
// prelude: const HEAD_DIM, PACK_BLOCK
override N_HEADS: u32;
override Q_STRIDE: u32;
override K_STORAGE: u32;   // format of keys: 0 Q8, 1 Q4, 2 NL4
override V_STORAGE: u32;
override HADAMARD: bool;
override LANES: u32; // at most HEAD_DIM

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> block_tables: array<u32>;
@group(0) @binding(2) var<storage, read> new_keys: array<f32>;
@group(0) @binding(3) var<storage, read> new_values: array<f32>;
@group(0) @binding(4) var<storage, read_write> q: array<f32>;
@group(0) @binding(5) var<storage, read_write> k_pool: array<u32>;
@group(0) @binding(6) var<storage, read_write> v_pool: array<u32>;

var<workgroup> numbers: array<f32, HEAD_DIM>;
var<workgroup> scale_mins: array<vec2f, HEAD_BLOCKS>; // as stored: rounded to float16

fn store(is_key: bool, at: u32, word: u32) {
  if (is_key) { k_pool[at] = word; } else { v_pool[at] = word; }
}

fn load(head: u32, row: u32, lane: u32) {
  for (var d = lane; d < HEAD_DIM; d += LANES) {
    if (head < N_HEADS) {
      numbers[d] = q[row * Q_STRIDE + head * HEAD_DIM + d];
    } else {
      let kv_head = (head - N_HEADS) % N_KV_HEADS;
      let at = (row * N_KV_HEADS + kv_head) * HEAD_DIM + d;
      numbers[d] = select(new_values[at], new_keys[at], head < N_HEADS + N_KV_HEADS);
    }
  }
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let head = select(N_HEADS, 0u, HADAMARD) + group.x;
  let row = group.y;
  if (row >= step.n_rows) { return; }
  load(head, row, lane);
  if (HADAMARD) { forward_hadamard(lane); }
  if (head < N_HEADS) {
    for (var d = lane; d < HEAD_DIM; d += LANES) {
      q[row * Q_STRIDE + head * HEAD_DIM + d] = numbers[d];
    }
    return;
  }
  workgroupBarrier();
  let is_key = head < N_HEADS + N_KV_HEADS;
  let kind = select(V_STORAGE, K_STORAGE, is_key);
  for (var block = lane; block < HEAD_BLOCKS; block += LANES) {
    scale_mins[block] = scale_min_of(kind, block);
  }
  workgroupBarrier();

  let here = step.rows[row];
  let block = block_tables[here.slot * MAX_BLOCKS + here.position / BLOCK_TOKENS];
  let t = cached_at(block, here.position, (head - N_HEADS) % N_KV_HEADS, 1u);
  let p = packing(kind);
  for (var i = lane; i < data_words(p); i += LANES) {
    store(is_key, data_at(t, p) + i, data_word(kind, i));
  }
  for (var i = lane; i < scale_words(p); i += LANES) {
    store(is_key, scales_at(t, p) + i, scale_word(kind, i));
  }
}
