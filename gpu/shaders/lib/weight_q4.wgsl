// Dequantisation of weights stored as 4-bit q: q · scale + minimum, both float16 per block; see
// lib/weights.wgsl.
const BLOCK_LOADS = 1u;
const SCALES_PER_LOAD = 4u;

fn scale_min_of(word: u32, index: u32) -> vec2f { return unpack2x16float(word); }
fn vec4_of(packed: vec4u, i: u32, scale_min: vec2f) -> vec4f {
  // The bits of 2²³ + q · (1, 16, 256, 4096): no shift for each q and no conversion, both slow on
  // GPUs. All steps but the last are exact.
  let q = (vec4u(packed[i / 2u] >> (16u * (i % 2u))) & vec4u(0xfu, 0xf0u, 0xf00u, 0xf000u))
        | vec4u(0x4b000000u);
  let scales = scale_min.x * vec4f(1.0, 0x1p-4, 0x1p-8, 0x1p-12);
  return fma(bitcast<vec4f>(q) - vec4f(0x1p23), scales, vec4f(scale_min.y));
}
