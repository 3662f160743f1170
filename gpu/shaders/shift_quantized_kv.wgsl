// k_pool[destination] = rope(k_pool[source], shift), v_pool[destination] = v_pool[source], in a
// quantised cache: what shift_kv.wgsl does in others.
//
// Keys are read as numbers, rotated and quantised again, with scales of their own. HADAMARD: their
// transform (lib/hadamard.wgsl) is undone before and done again after. Without a shift all bits are
// copied. One workgroup per (head, move): key heads, then value heads. No destination is a source
// of the same dispatch.
//
// moves         as in shift_kv.wgsl
// rope_cos_sin  [context][HALF] (cos, sin) (not bound if HALF is 0)
// k_pool, v_pool  words, see lib/packed_heads.wgsl
// use: paging
// use: kv_packed
// use: packed_q8
// use: packed_q4
// use: packed_nl4
// use: hadamard
// use: quantize_head
// prelude: const HEAD_DIM, PACK_BLOCK
override HALF: u32; // half of the rotated numbers: rotary_dim / 2; 0: keys have no position
override ROPE_UNSCALE: f32; // 1 / factor of rope_cos_sin, which keys have already
override K_STORAGE: u32;   // format of keys: 0 Q8, 1 Q4, 2 NL4
override V_STORAGE: u32;
override HADAMARD: bool;
override LANES: u32; // at most HEAD_DIM

@group(0) @binding(0) var<storage, read> moves: array<vec4u>;
@group(0) @binding(1) var<storage, read> rope_cos_sin: array<vec2f>; // optional
@group(0) @binding(2) var<storage, read_write> k_pool: array<u32>;
@group(0) @binding(3) var<storage, read_write> v_pool: array<u32>;

var<workgroup> numbers: array<f32, HEAD_DIM>;
var<workgroup> scale_mins: array<vec2f, HEAD_BLOCKS>; // as stored: rounded to float16

// Token of a head at a place, counted as lib/packed_heads.wgsl does.
fn token_at(place: u32, kv_head: u32) -> u32 {
  return cached_at(place / BLOCK_TOKENS, place, kv_head, 1u);
}

fn load_key(t: u32, lane: u32) {
  let p = packing(K_STORAGE);
  for (var chunk = lane; chunk < HEAD_CHUNKS; chunk += LANES) {
    let block = chunk * CHUNK / PACK_BLOCK;
    let absmax = half_of(k_pool[scales_at(t, p) + block / 2u], block);
    let at = data_at(t, p) + chunk * CHUNK * p.bits / 32u;
    var found: Numbers;
    if (K_STORAGE == 0u) {
      found = from_q8(vec2u(k_pool[at], k_pool[at + 1u]), absmax);
    } else {
      found = from_nl4(k_pool[at], absmax);
    }
    for (var i = 0u; i < CHUNK; i++) { numbers[chunk * CHUNK + i] = found[i / 4u][i % 4u]; }
  }
}

fn rotate(shift: i32, lane: u32) {
  for (var d = lane; d < HALF; d += LANES) {
    let low = numbers[d];
    let high = numbers[d + HALF];
    let cos_sin = rope_cos_sin[u32(abs(shift)) * HALF + d] * ROPE_UNSCALE;
    let sine = select(cos_sin.y, -cos_sin.y, shift < 0);
    numbers[d] = fma(low, cos_sin.x, -high * sine);
    numbers[d + HALF] = fma(high, cos_sin.x, low * sine);
  }
}

fn store_key(t: u32, lane: u32) {
  let p = packing(K_STORAGE);
  for (var i = lane; i < data_words(p); i += LANES) {
    k_pool[data_at(t, p) + i] = data_word(K_STORAGE, i);
  }
  for (var i = lane; i < scale_words(p); i += LANES) {
    k_pool[scales_at(t, p) + i] = scale_word(K_STORAGE, i);
  }
}

fn copy_key(source: u32, destination: u32, lane: u32) {
  let p = packing(K_STORAGE);
  for (var i = lane; i < data_words(p); i += LANES) {
    k_pool[data_at(destination, p) + i] = k_pool[data_at(source, p) + i];
  }
  for (var i = lane; i < scale_words(p); i += LANES) {
    k_pool[scales_at(destination, p) + i] = k_pool[scales_at(source, p) + i];
  }
}

fn copy_value(source: u32, destination: u32, lane: u32) {
  let p = packing(V_STORAGE);
  for (var i = lane; i < data_words(p); i += LANES) {
    v_pool[data_at(destination, p) + i] = v_pool[data_at(source, p) + i];
  }
  for (var i = lane; i < scale_words(p); i += LANES) {
    v_pool[scales_at(destination, p) + i] = v_pool[scales_at(source, p) + i];
  }
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  if (group.y >= moves[0].x) { return; }
  let this_move = moves[1u + group.y];
  let source = token_at(this_move.x, group.x % N_KV_HEADS);
  let destination = token_at(this_move.y, group.x % N_KV_HEADS);
  let shift = bitcast<i32>(this_move.z);
  if (group.x >= N_KV_HEADS) {
    copy_value(source, destination, lane);
    return;
  }
  if (shift == 0 || HALF == 0u) {
    copy_key(source, destination, lane);
    return;
  }
  load_key(source, lane);
  if (HADAMARD) { inverse_hadamard(lane); }
  workgroupBarrier();
  rotate(shift, lane);
  workgroupBarrier();
  if (HADAMARD) { forward_hadamard(lane); }
  workgroupBarrier();
  for (var block = lane; block < HEAD_BLOCKS; block += LANES) {
    scale_mins[block] = scale_min_of(K_STORAGE, block);
  }
  workgroupBarrier();
  store_key(destination, lane);
}
