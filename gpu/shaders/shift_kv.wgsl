// k_pool[destination] = rope(k_pool[source], shift), v_pool[destination] = v_pool[source]: tokens
// whose position changed by `shift`.
//
// Rotations add up (Su et al. 2021, "RoFormer"), so a key in the cache is moved to another position
// by one more rotation. Without a shift all bits are copied. One workgroup per (head, move): key
// heads, then value heads. No destination is a source of the same dispatch.
//
// moves         [1 + n] vec4: (n, 0, 0, 0), then (source, destination, shift as i32, 0) of each
//               move; a place is its block · BLOCK_TOKENS + the token in the block
// rope_cos_sin  [context][HALF] vec4: (cos, sin) of two numbers (not bound if HALF is 0)
// k_pool, v_pool  see lib/paging.wgsl, as pairs
// use: paging
// use: kv_pair
override PAIRS: u32; // pairs in a head: head_dim / 2
override HALF: u32;  // pairs in half of the rotated part: rotary_dim / 4; 0: keys have no position
override ROPE_UNSCALE: f32; // 1 / factor of rope_cos_sin, which keys have already
override LANES: u32;

@group(0) @binding(0) var<storage, read> moves: array<vec4u>;
@group(0) @binding(1) var<storage, read> rope_cos_sin: array<vec4f>; // optional
@group(0) @binding(2) var<storage, read_write> k_pool: array<Pair>;
@group(0) @binding(3) var<storage, read_write> v_pool: array<Pair>;

// First pair of a head at a place.
fn pairs_at(place: u32, kv_head: u32) -> u32 {
  return 2u * cached_at(place / BLOCK_TOKENS, place, kv_head, PAIRS / 2u);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  if (group.y >= moves[0].x) { return; }
  let this_move = moves[1u + group.y];
  let source = pairs_at(this_move.x, group.x % N_KV_HEADS);
  let destination = pairs_at(this_move.y, group.x % N_KV_HEADS);
  let shift = bitcast<i32>(this_move.z);
  if (group.x >= N_KV_HEADS) {
    for (var pair = lane; pair < PAIRS; pair += LANES) {
      v_pool[destination + pair] = v_pool[source + pair];
    }
    return;
  }
  for (var pair = lane; pair < PAIRS; pair += LANES) {
    if (shift == 0 || pair >= 2u * HALF) {
      k_pool[destination + pair] = k_pool[source + pair];
      continue;
    }
    if (pair >= HALF) { continue; } // stored with the other half
    let low = from_pair(k_pool[source + pair]);
    let high = from_pair(k_pool[source + pair + HALF]);
    let cos_sin = rope_cos_sin[u32(abs(shift)) * HALF + pair] * ROPE_UNSCALE;
    let cosines = cos_sin.xz;
    let sines = select(cos_sin.yw, -cos_sin.yw, shift < 0);
    k_pool[destination + pair] = pair_of(fma(low, cosines, -high * sines));
    k_pool[destination + pair + HALF] = pair_of(fma(high, cosines, low * sines));
  }
}
