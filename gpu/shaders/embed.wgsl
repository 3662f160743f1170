// x[row] = table[token of row]
//
// table   [COUNT][CHUNKS] rows FIRST .. FIRST + COUNT - 1 of the vocabulary (one shard)
// chosen  [n_slots] the id each slot sampled last
// x       [n_rows][2 * CHUNKS] vec4
// use: step
// use: weight
override CHUNKS: u32; // of eight weights in a row
override FIRST: u32 = 0u;
override COUNT: u32;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> table: array<Weights>;
@group(0) @binding(2) var<storage, read> chosen: array<u32>;
@group(0) @binding(3) var<storage, read_write> x: array<vec4f>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let chunk = id.x;
  let row = id.y;
  if (chunk >= CHUNKS || row >= step.n_rows) { return; }
  var token = step.rows[row].token;
  if (token == FROM_GPU) { token = chosen[step.rows[row].slot]; }
  if (token < FIRST || token - FIRST >= COUNT) { return; } // another shard's
  let weights = table[(token - FIRST) * CHUNKS + chunk];
  let at = (row * CHUNKS + chunk) * 2u;
  x[at] = unpack_low(weights);
  x[at + 1u] = unpack_high(weights);
}
