// RMSNorm (rms_norm) or LayerNorm of each row: y = [residual +] norm(x) · gain [+ bias]
//
//   norm(x) = x / sqrt(mean(x²) + EPS)                    RMSNorm (Zhang & Sennrich 2019)
//   CENTRED:  (x − mean(x)) / sqrt(variance(x) + EPS)     LayerNorm (Ba et al. 2016)
//
// One workgroup per row, lanes over its numbers; the order of the sums depends on LANES alone. An
// RMSNorm before a matmul is folded into the matmul instead (lib/matmul_tile.wgsl).
//
// x         [rows][STRIDE]
// gain      [>= WIDTH]
// bias      [>= WIDTH]       (not bound without BIAS)
// residual  [rows][STRIDE]   (not bound without RESIDUAL)
// y         [rows][STRIDE]; columns past WIDTH are not written
// use: step
// use: workgroup_sum
// use: quotient
override WIDTH: u32;
override STRIDE: u32;
override EPS: f32;
override CENTRED: bool = false;
override BIAS: bool = false;
override RESIDUAL: bool = false;
override GATHER: bool = false; // y has one row per sample, from the sample's row of x

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>; // optional
@group(0) @binding(4) var<storage, read> residual: array<f32>; // optional
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= select(step.n_rows, step.n_samples, GATHER)) { return; }
  var source = row;
  if (GATHER) { source = step.samples[min(row, MAX_SAMPLES - 1u)].row; }
  let start = source * STRIDE;

  var mean = 0.0;
  if (CENTRED) {
    var sum = 0.0;
    for (var d = lane; d < WIDTH; d += LANES) { sum += x[start + d]; }
    mean = quotient(workgroup_sum(sum, lane), f32(WIDTH)); // differences keep its error
  }
  var squares = 0.0;
  for (var d = lane; d < WIDTH; d += LANES) {
    let v = x[start + d] - mean;
    squares = fma(v, v, squares);
  }
  let scale = 1.0 / sqrt(workgroup_sum(squares, lane) / f32(WIDTH) + EPS);
  for (var d = lane; d < WIDTH; d += LANES) {
    var v = (x[start + d] - mean) * scale * gain[d];
    if (BIAS) { v += bias[d]; }
    if (RESIDUAL) { v += residual[row * STRIDE + d]; }
    y[row * STRIDE + d] = v;
  }
}
