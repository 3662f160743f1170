// Blocks of lib/weight_q8.wgsl as int8, for lib/matmul_tile_int8.wgsl.
const HAS_MINS = false; // blocks have a minimum

// Numbers of the block `after` loads after `place`, in order.
fn int8_of(place: WeightAddress, after: u32) -> array<vec4u, 2> {
  return array<vec4u, 2>(load_at(place, after), load_at(place, after + 1u));
}
