// x[row] = weight[token of row] · SCALE
//
// weight  [COUNT] rows FIRST .. FIRST + COUNT - 1 of the vocabulary (one shard); lib/weights.wgsl
// chosen  [n_slots] the id each slot sampled last
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
  if (load >= BLOCKS * BLOCK_PACKED || row >= step.n_rows) { return; }
  var token = step.rows[row].token;
  if (token == FROM_GPU) { token = chosen[step.rows[row].slot]; }
  if (token < FIRST || token - FIRST >= COUNT) { return; } // another shard's
  let block = load / BLOCK_PACKED;
  var grid = vec2f();
  if (GRIDS_PACKED > 0u) {
    let index = grid_index(block, (token - FIRST) % ABREAST);
    let word = word_at(grids_at(token - FIRST), to_grid(index), grid_word(index));
    grid = grid_of(word, index);
  }
  let packed = load_at(blocks_at(token - FIRST), to_block(block) + load % BLOCK_PACKED);
  let at = (row * BLOCKS * BLOCK_PACKED + load) * PACKED_FOURS;
  for (var i = 0u; i < PACKED_FOURS; i++) { x[at + i] = four_of(packed, i, grid) * SCALE; }
}
