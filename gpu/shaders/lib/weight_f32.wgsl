// A matrix of float32; see lib/weights.wgsl.
const BLOCK_PACKED = 8u;
const GRIDS_PACKED = 0u;

fn grid_of(word: u32, index: u32) -> vec2f { return vec2f(); }
fn four_of(packed: vec4u, i: u32, grid: vec2f) -> vec4f { return bitcast<vec4f>(packed); }
