// A quarter of a block: eight consecutive weights, so that four neighbouring lanes load one block
// and each loads only the bytes it needs.
// use: weights

// The two vec4s of quarter `quarter` of the block at `place` + `offset`.
fn block_quarter(
  place: WeightAddress, offset: u32, quarter: u32, scale_min: vec2f
) -> array<vec4f, 2> {
  if (BLOCK_LOADS == 8u) {
    return array(vec4_of(load_at(place, offset + 2u * quarter), 0u, scale_min),
                 vec4_of(load_at(place, offset + 2u * quarter + 1u), 0u, scale_min));
  }
  var words = vec4u();
  if (BLOCK_LOADS == 4u) {
    words = load_at(place, offset + quarter);
  } else if (BLOCK_LOADS == 2u) {
    let load = offset + quarter / 2u;
    words.x = word_at(place, load, quarter % 2u * 2u);
    words.y = word_at(place, load, quarter % 2u * 2u + 1u);
  } else {
    words.x = word_at(place, offset, quarter);
  }
  return array(vec4_of(words, 0u, scale_min), vec4_of(words, 1u, scale_min));
}
