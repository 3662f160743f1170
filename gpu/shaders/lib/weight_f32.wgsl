// Weights stored as float32; see lib/weights.wgsl.
const BLOCK_LOADS = 8u;
const SCALES_PER_LOAD = 0u;

fn scale_min_of(word: u32, index: u32) -> vec2f { return vec2f(); }
fn vec4_of(packed: vec4u, i: u32, scale_min: vec2f) -> vec4f { return bitcast<vec4f>(packed); }
