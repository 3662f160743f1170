// A matrix of float16, two to a word, the first in the low half; see lib/weights.wgsl.
const BLOCK_PACKED = 4u;
const GRIDS_PACKED = 0u;

fn grid_of(word: u32, index: u32) -> vec2f { return vec2f(); }
fn four_of(packed: vec4u, i: u32, grid: vec2f) -> vec4f {
  return vec4f(unpack2x16float(packed[2u * i]), unpack2x16float(packed[2u * i + 1u]));
}
