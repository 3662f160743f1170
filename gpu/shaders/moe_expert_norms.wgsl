// norms[pair] = ‖parts[pair]‖, the length of what each expert gave a row. One workgroup for each
// pair, lanes over its numbers; a pair is as in experts.wgsl.
//
// parts  [rows · PER_TOKEN][STRIDE / 4] vec4, zeros past the width
// norms  [rows · PER_TOKEN]
// use: step
override PER_TOKEN: u32;
override STRIDE: u32;
const LANES = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> parts: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> norms: array<f32>;

var<workgroup> squares: array<f32, LANES>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let pair = group.x;
  if (pair >= step.n_rows * PER_TOKEN) { return; }
  let width = STRIDE / 4u;
  var mine = 0.0;
  for (var k = lane; k < width; k += LANES) {
    let part = parts[pair * width + k];
    mine += dot(part, part);
  }
  squares[lane] = mine;
  workgroupBarrier();
  if (lane > 0u) { return; }
  var sum = 0.0;
  for (var l = 0u; l < LANES; l++) { sum += squares[l]; }
  norms[pair] = sqrt(sum);
}
