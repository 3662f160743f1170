// Blocks of lib/weight_q4.wgsl as int8, for lib/matmul_tile_int8.wgsl.
const HAS_MINS = true; // blocks have a minimum

// Numbers of the block `after` loads after `place`: those of even index, then those of odd index.
fn int8_of(place: WeightAddress, after: u32) -> array<vec4u, 2> {
  let pairs = load_at(place, after);
  return array<vec4u, 2>(pairs & vec4u(0x0f0f0f0fu), (pairs >> vec4u(4u)) & vec4u(0x0f0f0f0fu));
}
