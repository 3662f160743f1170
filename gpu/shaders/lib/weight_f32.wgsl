// A matrix of float32; see lib/weights.wgsl.
alias Packed = vec4f;
const BLOCK_PACKED = 8u;
const GRIDS_PACKED = 0u;

fn grid_of(packed: Packed, block: u32) -> vec2f { return vec2f(); }
fn four_of(packed: Packed, i: u32, grid: vec2f) -> vec4f { return packed; }
