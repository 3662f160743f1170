// Dequantisation of weights stored as int8 q: q · scale, float16 per block; see lib/weights.wgsl.
const BLOCK_LOADS = 2u;
const SCALES_PER_LOAD = 8u;

fn scale_min_of(word: u32, index: u32) -> vec2f {
  let scales = unpack2x16float(word);
  return vec2f(select(scales.x, scales.y, index % 2u == 1u), 0.0);
}
fn vec4_of(packed: vec4u, i: u32, scale_min: vec2f) -> vec4f {
  return vec4f(unpack4xI8(packed[i])) * scale_min.x;
}
