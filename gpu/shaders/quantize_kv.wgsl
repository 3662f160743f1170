// k_pool, v_pool = the new keys and values of every row, quantised into the paged cache
// (gpu/kv/formats.py). HADAMARD: they are rotated before (lib/hadamard.wgsl), and q in place.
//
// Used after qkv or qk_norm_rope. One workgroup per (head, row): query heads with HADAMARD, key
// heads, value heads. One lane finds the scale and minimum of a block, so that the bits of a key
// depend on its own numbers only.
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
// use: fma4
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

fn packing(storage_kind: u32) -> Packing {
  if (storage_kind == 0u) { return Q8; }
  if (storage_kind == 1u) { return Q4; }
  return NL4;
}

fn four_at(d: u32) -> vec4f {
  return vec4f(numbers[d], numbers[d + 1u], numbers[d + 2u], numbers[d + 3u]);
}

// (minimum, range) of a block for Q4; (absmax, 0) otherwise.
fn scale_min_of(storage_kind: u32, block: u32) -> vec2f {
  let first = block * PACK_BLOCK;
  var least = numbers[first];
  var most = least;
  for (var d = first; d < first + PACK_BLOCK; d++) {
    least = min(least, numbers[d]);
    most = max(most, numbers[d]);
  }
  if (storage_kind == 1u) {
    let low = as_half(least);
    return vec2f(low, as_half(most - low));
  }
  let absmax = max(-least, most);
  if (storage_kind == 0u) { return vec2f(as_half(absmax), 0.0); }
  return vec2f(as_half(fitted_absmax(first, over(255.0, absmax))), 0.0);
}

// Least-squares absmax: minimises the squared error of the nearest levels.
fn fitted_absmax(first: u32, levels_per_one: f32) -> f32 {
  var products = 0.0;
  var squares = 0.0;
  for (var d = first; d < first + PACK_BLOCK; d += 4u) {
    let size = abs(four_at(d));
    let found = level(nearest_level(size * levels_per_one));
    products = dot_add(size, found, products);
    squares = dot_add(found, found, squares);
  }
  return 255.0 * products / squares;
}

// Rounded to float16, clamped to its largest number.
fn as_half(x: f32) -> f32 {
  return unpack2x16float(pack2x16float(vec2f(clamp(x, -65504.0, 65504.0), 0.0))).x;
}

// Word `i` of the scales (and minima).
fn scale_word(storage_kind: u32, i: u32) -> u32 {
  if (storage_kind == 1u) { return pack2x16float(scale_mins[i]); }
  let second = 2u * i + 1u;
  let last = scale_mins[min(second, HEAD_BLOCKS - 1u)].x;
  return pack2x16float(vec2f(scale_mins[2u * i].x, select(0.0, last, second < HEAD_BLOCKS)));
}

// Word `i` of the quantised numbers.
fn data_word(storage_kind: u32, i: u32) -> u32 {
  if (storage_kind == 0u) { return q8_of(four_at(4u * i), scale_mins[4u * i / PACK_BLOCK].x); }
  let d = CHUNK * i;
  let scale_min = scale_mins[d / PACK_BLOCK];
  let low = four_at(d);
  let high = four_at(d + 4u);
  if (storage_kind == 1u) { return q4_of(low, scale_min) | (q4_of(high, scale_min) << 16u); }
  return nl4_of(low, scale_min.x) | (nl4_of(high, scale_min.x) << 16u);
}

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
