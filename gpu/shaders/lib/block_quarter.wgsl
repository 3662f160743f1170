// Quarters of a block: eight consecutive weights each, so that neighbouring lanes load one block
// and each loads only the bytes it needs.
// use: weights
// prelude: const LANE_QUARTERS (1, 2 or 4)
const LANE_WORDS = LANE_QUARTERS * BLOCK_LOADS; // of the quarters that a lane loads
const LANE_LOADS = (LANE_WORDS + 3u) / 4u;

// The LANE_QUARTERS quarters from `quarter` on of the block at `place` + `offset`.
fn load_quarters(
  place: WeightAddress, offset: u32, quarter: u32
) -> array<vec4u, LANE_LOADS> {
  var found = array<vec4u, LANE_LOADS>();
  let first = quarter * BLOCK_LOADS; // word of the block
  if (LANE_WORDS >= 4u) {
    for (var l = 0u; l < LANE_LOADS; l++) { // unroll
      found[l] = load_at(place, offset + first / 4u + l);
    }
  } else {
    found[0].x = word_at(place, offset + first / 4u, first % 4u);
    if (LANE_WORDS == 2u) { found[0].y = word_at(place, offset + first / 4u, first % 4u + 1u); }
  }
  return found;
}

// Vec4 `i` of loaded quarters.
fn quarter_vec4(loaded: array<vec4u, LANE_LOADS>, i: u32, scale_min: vec2f) -> vec4f {
  return vec4_of(loaded[i / LOAD_VEC4S], i % LOAD_VEC4S, scale_min);
}
