// A matrix of four-bit numbers, q · scale + minimum, both float16 for each block; see
// lib/weights.wgsl.
const BLOCK_PACKED = 1u;
const GRIDS_PACKED = 4u;

fn grid_of(word: u32, index: u32) -> vec2f { return unpack2x16float(word); }
fn four_of(packed: vec4u, i: u32, grid: vec2f) -> vec4f {
  let shifts = vec4u(0u, 4u, 8u, 12u) + 16u * (i % 2u);
  let q = vec4f((vec4u(packed[i / 2u]) >> shifts) & vec4u(15u));
  return fma(q, vec4f(grid.x), vec4f(grid.y));
}
