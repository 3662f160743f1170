// Weights stored as float16, two to a word, the first in the low half; see lib/weights.wgsl.
const BLOCK_LOADS = 4u;
const SCALES_PER_LOAD = 0u;

fn scale_min_of(word: u32, index: u32) -> vec2f { return vec2f(); }
fn vec4_of(packed: vec4u, i: u32, scale_min: vec2f) -> vec4f {
  return vec4f(unpack2x16float(packed[2u * i]), unpack2x16float(packed[2u * i + 1u]));
}
