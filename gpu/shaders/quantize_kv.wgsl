// The keys and values that qkv or place_heads left for every row, quantised into the paged cache
// (gpu/kv/formats.py); ROTATED: turned before, and the queries, in place.
//
// One workgroup for each (head, row): query heads when ROTATED, key heads, value heads. A block's
// grid is found by one lane, whatever their number: the bits of a key depend on its own numbers.
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
// use: packed_n4
// use: hadamard
// use: fma4
// prelude: const HEAD_DIM, PACK_BLOCK
override N_HEADS: u32;
override Q_STRIDE: u32;
override KEYS: u32;   // how they are stored: 0 Q8, 1 Q4, 2 N4
override VALUES: u32;
override ROTATED: bool;
override LANES: u32; // at most as many as a head has numbers

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> block_tables: array<u32>;
@group(0) @binding(2) var<storage, read> new_keys: array<f32>;
@group(0) @binding(3) var<storage, read> new_values: array<f32>;
@group(0) @binding(4) var<storage, read_write> q: array<f32>;
@group(0) @binding(5) var<storage, read_write> k_pool: array<u32>;
@group(0) @binding(6) var<storage, read_write> v_pool: array<u32>;

var<workgroup> numbers: array<f32, HEAD_DIM>;
var<workgroup> grids: array<vec2f, GRIDS>; // as they are stored

fn packing(storage_kind: u32) -> Packing {
  if (storage_kind == 0u) { return Q8; }
  if (storage_kind == 1u) { return Q4; }
  return N4;
}

fn four_at(d: u32) -> vec4f {
  return vec4f(numbers[d], numbers[d + 1u], numbers[d + 2u], numbers[d + 3u]);
}

// The grid of a block for Q4: least, range; else: top, nothing.
fn grid_of(storage_kind: u32, block: u32) -> vec2f {
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
  let top = max(-least, most);
  if (storage_kind == 0u) { return vec2f(as_half(top), 0.0); }
  return vec2f(as_half(fitted_top(first, over(255.0, top))), 0.0);
}

// The top with which the levels closest to a block's numbers err least, in squares.
fn fitted_top(first: u32, levels_per_one: f32) -> f32 {
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

// As stored: what float16 has no number for becomes its greatest.
fn as_half(x: f32) -> f32 {
  return unpack2x16float(pack2x16float(vec2f(clamp(x, -65504.0, 65504.0), 0.0))).x;
}

// Word `i` of the grids.
fn grid_word(storage_kind: u32, i: u32) -> u32 {
  if (storage_kind == 1u) { return pack2x16float(grids[i]); }
  let second = 2u * i + 1u;
  return pack2x16float(vec2f(grids[2u * i].x, select(0.0, grids[min(second, GRIDS - 1u)].x,
                                                     second < GRIDS)));
}

// Word `i` of the numbers.
fn data_word(storage_kind: u32, i: u32) -> u32 {
  if (storage_kind == 0u) { return q8_of(four_at(4u * i), grids[4u * i / PACK_BLOCK].x); }
  let d = CHUNK * i;
  let grid = grids[d / PACK_BLOCK];
  let low = four_at(d);
  let high = four_at(d + 4u);
  if (storage_kind == 1u) { return q4_of(low, grid) | (q4_of(high, grid) << 16u); }
  return n4_of(low, grid.x) | (n4_of(high, grid.x) << 16u);
}

fn leave(is_key: bool, at: u32, word: u32) {
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
  let head = select(N_HEADS, 0u, ROTATED) + group.x;
  let row = group.y;
  if (row >= step.n_rows) { return; }
  load(head, row, lane);
  if (ROTATED) { rotated(lane); }
  if (head < N_HEADS) {
    for (var d = lane; d < HEAD_DIM; d += LANES) {
      q[row * Q_STRIDE + head * HEAD_DIM + d] = numbers[d];
    }
    return;
  }
  workgroupBarrier();
  let is_key = head < N_HEADS + N_KV_HEADS;
  let kind = select(VALUES, KEYS, is_key);
  for (var block = lane; block < GRIDS; block += LANES) { grids[block] = grid_of(kind, block); }
  workgroupBarrier();

  let here = step.rows[row];
  let block = block_tables[here.slot * MAX_BLOCKS + here.position / BLOCK_TOKENS];
  let t = cached_at(block, here.position, (head - N_HEADS) % N_KV_HEADS, 1u);
  let p = packing(kind);
  for (var i = lane; i < data_words(p); i += LANES) {
    leave(is_key, data_at(t, p) + i, data_word(kind, i));
  }
  for (var i = lane; i < grid_words(p); i += LANES) {
    leave(is_key, grids_at(t, p) + i, grid_word(kind, i));
  }
}
