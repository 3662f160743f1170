// A matrix of signed bytes, q · scale with a float16 scale for each block; see lib/weights.wgsl.
const BLOCK_PACKED = 2u;
const GRIDS_PACKED = 8u;

fn grid_of(word: u32, index: u32) -> vec2f {
  let scales = unpack2x16float(word);
  return vec2f(select(scales.x, scales.y, index % 2u == 1u), 0.0);
}
fn four_of(packed: vec4u, i: u32, grid: vec2f) -> vec4f {
  return vec4f(unpack4xI8(packed[i])) * grid.x;
}
