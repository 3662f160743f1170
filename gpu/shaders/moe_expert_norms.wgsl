// norms[assignment] = ‖expert_out[assignment]‖, an assignment as in moe_matmul.wgsl.
//
// One workgroup per assignment, lanes over the width. Used by inspection only.
//
// expert_out  [rows · EXPERTS_PER_TOKEN][STRIDE / 4] vec4, zeros past the width
// norms       [rows · EXPERTS_PER_TOKEN]
// use: step
override EXPERTS_PER_TOKEN: u32;
override STRIDE: u32;
const LANES = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> expert_out: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> norms: array<f32>;

var<workgroup> squares: array<f32, LANES>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let assignment = group.x;
  if (assignment >= step.n_rows * EXPERTS_PER_TOKEN) { return; }
  let width = STRIDE / 4u;
  var mine = 0.0;
  for (var k = lane; k < width; k += LANES) {
    let part = expert_out[assignment * width + k];
    mine += dot(part, part);
  }
  squares[lane] = mine;
  workgroupBarrier();
  if (lane > 0u) { return; }
  var sum = 0.0;
  for (var l = 0u; l < LANES; l++) { sum += squares[l]; }
  norms[assignment] = sqrt(sum);
}
