// x = inverse Hadamard rotation of every head of x, in place.
//
// Used after attention over a rotated KV cache (lib/hadamard.wgsl). One workgroup per (head, row).
//
// x  [n_rows][STRIDE]
// use: step
// use: hadamard
override HEAD_DIM: u32;
override STRIDE: u32;
override LANES: u32; // at most HEAD_DIM

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;

var<workgroup> numbers: array<f32, HEAD_DIM>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  if (group.y >= step.n_rows) { return; }
  let at = group.y * STRIDE + group.x * HEAD_DIM;
  for (var d = lane; d < HEAD_DIM; d += LANES) { numbers[d] = x[at + d]; }
  inverse_hadamard(lane);
  for (var d = lane; d < HEAD_DIM; d += LANES) { x[at + d] = numbers[d]; }
}
