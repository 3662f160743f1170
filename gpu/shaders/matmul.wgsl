// y = [residual +] SCALE · cap(act([norm](x) · weightᵀ [+ bias]))
//
//   act    see lib/activation.wgsl
//          GATED: act(even columns) · odd columns     SwiGLU (Shazeer 2020), half as many columns
//   cap    see lib/soft_cap.wgsl
//
// Used for every projection but qkv, and for the output head; at prefill, and at decode as a
// matrix-vector product (TILE_M = 1).
//
// x, weight, gain  see lib/matmul_tile.wgsl; lib/weight_{f32,f16,q8,q4}.wgsl reads
//                  weights; the shard is columns FIRST .. FIRST + N - 1 of y (before GATED halves
//                  them)
// bias      [>= FIRST + N], or one per row, BIAS_STRIDE apart (not bound without BIAS)
// residual  [rows][Y_STRIDE]         (not bound without RESIDUAL)
// y         [rows][Y_STRIDE]
// use: step
// use: tile_lanes
// use: matmul_tile
// use: activation
// use: soft_cap
override FIRST: u32 = 0u;
override Y_STRIDE: u32;
override BIAS: bool = false;
override BIAS_STRIDE: u32 = 0u;
override GATED: bool = false;
override RESIDUAL: bool = false;
override GATHER: bool = false; // y has one row per sample, from the sample's row of x
override GATHERED: bool = false; // with GATHER: x has one row per sample
override SCALE: f32 = 1.0;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(4) var<storage, read> bias: array<f32>; // optional
@group(0) @binding(5) var<storage, read> residual: array<f32>; // optional
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

fn source_row(row: u32) -> u32 {
  if (GATHER && !GATHERED) { return step.samples[min(row, MAX_SAMPLES - 1u)].row; }
  return row;
}

fn weight_row(column: u32) -> u32 { return column; }

fn store(row: u32, column: u32, value: f32) {
  let at = row * Y_STRIDE + column;
  let capped = soft_cap(vec4f(value)).x;
  if (RESIDUAL) {
    y[at] = fma(capped, SCALE, residual[at]);
  } else {
    y[at] = capped * SCALE;
  }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let n_rows = select(step.n_rows, step.n_samples, GATHER);
  if (group.y * GROUP_M >= n_rows) { return; } // the whole workgroup, so that barriers stay uniform
  matmul_tile(tile_row(group.y, lane), tile_column(group.x, lane), n_rows, lane);
  if (!has_sums(lane)) { return; }
  let first_m = sums_row(group.y, lane);
  let first_n = sums_column(group.x, lane);
  // A copy to index: drivers keep arrays indexed by a variable in memory.
  var found = sums;
  for (var i = 0u; i < SUMS_M; i++) {
    let row = first_m + i;
    if (row >= n_rows) { break; }
    let scale = row_scale(i);
    for (var j = 0u; j < SUMS_N; j++) {
      let column = first_n + j;
      if (column >= N) { break; }
      var value = found[i * SUMS_N + j] * scale;
      let at = row * BIAS_STRIDE + FIRST + column;
      if (BIAS) { value = fma(found[i * SUMS_N + j], scale, bias[at]); }
      if (!GATED) {
        store(row, FIRST + column, activated(value));
      } else if (j % 2u == 1u) {
        var gate = found[i * SUMS_N + j - 1u] * scale;
        if (BIAS) { gate = fma(found[i * SUMS_N + j - 1u], scale, bias[at - 1u]); }
        store(row, (FIRST + column) / 2u, activated(gate) * value);
      }
    }
  }
}
