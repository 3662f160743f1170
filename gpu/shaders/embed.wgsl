// x[row] = weight[token of row] · SCALE
//
// weight  [COUNT] rows FIRST .. FIRST + COUNT - 1 of the vocabulary (one shard); lib/weights.wgsl
// chosen  [n_slots] id that each slot sampled last
// x       [n_rows][8 * BLOCKS] vec4
// use: step
// use: weights
override FIRST: u32 = 0u;
override COUNT: u32;
override SCALE: f32 = 1.0;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> chosen: array<u32>;
@group(0) @binding(3) var<storage, read_write> x: array<vec4f>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let load = id.x;
  let row = id.y;
  if (load >= BLOCKS * BLOCK_LOADS || row >= step.n_rows) { return; }
  var token = step.rows[row].token;
  if (token == FROM_GPU) { token = chosen[step.rows[row].slot]; }
  if (token < FIRST || token - FIRST >= COUNT) { return; } // in another shard
  let block = load / BLOCK_LOADS;
  var scale_min = vec2f();
  if (SCALES_PER_LOAD > 0u) {
    let index = scale_index(block, (token - FIRST) % INTERLEAVE);
    let word = word_at(scales_at(token - FIRST), scale_offset(index), scale_word(index));
    scale_min = scale_min_of(word, index);
  }
  let packed = load_at(blocks_at(token - FIRST), block_offset(block) + load % BLOCK_LOADS);
  let at = (row * BLOCKS * BLOCK_LOADS + load) * LOAD_VEC4S;
  for (var i = 0u; i < LOAD_VEC4S; i++) { x[at + i] = vec4_of(packed, i, scale_min) * SCALE; }
}
