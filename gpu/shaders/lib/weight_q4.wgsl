// Weights stored as 4-bit q: q · scale + minimum, both float16 per block; see lib/weights.wgsl.
const BLOCK_LOADS = 1u;
const SCALES_PER_LOAD = 4u;

fn scale_min_of(word: u32, index: u32) -> vec2f { return unpack2x16float(word); }
fn vec4_of(packed: vec4u, i: u32, scale_min: vec2f) -> vec4f {
  let shifts = vec4u(0u, 4u, 8u, 12u) + 16u * (i % 2u);
  let q = vec4f((vec4u(packed[i / 2u]) >> shifts) & vec4u(15u));
  return fma(q, vec4f(scale_min.x), vec4f(scale_min.y));
}
