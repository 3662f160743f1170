// y = [residual +] act([norm](x) · weightᵀ [+ bias])
//
//   norm   x[k] · gain[k] / sqrt(mean(x²) + EPS)      RMSNorm (Zhang & Sennrich 2019)
//   act    GATED: silu(even columns) · odd columns    SwiGLU (Shazeer 2020), half as many columns
//
// The mean of squares is summed in the same loop as the product and applied after it, so the norm
// costs no pass and no barrier of its own. Each invocation owns TILE_M rows × TILE_N columns and
// walks k in one fixed order: a row's bits do not depend on the tile or on the rows beside it.
//
// x         [rows][2 * CHUNKS] vec4; columns past K are zero
// weight    [N][CHUNKS] one shard: columns FIRST .. FIRST + N - 1 of y (before GATED halves them)
// gain      [2 * CHUNKS] vec4        (any buffer when not NORM)
// bias      [>= FIRST + N]           (any buffer when not BIAS)
// residual  [rows][Y_STRIDE]         (any buffer when not RESIDUAL)
// y         [rows][Y_STRIDE]
// use: step
// use: weight
// use: fma4
// prelude: const TILE_M, const TILE_N (even)
override K: u32;
override CHUNKS: u32; // of eight weights in a row: ceil(K / 8)
override N: u32;
override FIRST: u32 = 0u;
override Y_STRIDE: u32;
override EPS: f32 = 0.0;
override NORM: bool = false;
override BIAS: bool = false;
override GATED: bool = false;
override RESIDUAL: bool = false;
override GATHER: bool = false; // rows of y are the step's samples, taken from their rows of x
override WORKGROUP: u32 = 8u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> weight: array<Weights>;
@group(0) @binding(3) var<storage, read> gain: array<vec4f>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read> residual: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

fn silu(v: f32) -> f32 { return v / (1.0 + exp(-v)); }

fn source_row(row: u32) -> u32 {
  if (GATHER) { return step.samples[min(row, MAX_SAMPLES - 1u)].row; }
  return row;
}

fn store(row: u32, column: u32, value: f32) {
  let at = row * Y_STRIDE + column;
  if (RESIDUAL) {
    y[at] = residual[at] + value;
  } else {
    y[at] = value;
  }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let first_n = id.x * TILE_N;
  let first_m = id.y * TILE_M;
  let n_rows = select(step.n_rows, step.n_samples, GATHER);
  if (first_n >= N || first_m >= n_rows) { return; }

  // Rows and columns past the edge repeat the last one and are not stored.
  var x_at: array<u32, TILE_M>;
  for (var i = 0u; i < TILE_M; i++) {
    x_at[i] = source_row(min(first_m + i, n_rows - 1u)) * CHUNKS * 2u;
  }
  var w_at: array<u32, TILE_N>;
  for (var j = 0u; j < TILE_N; j++) { w_at[j] = min(first_n + j, N - 1u) * CHUNKS; }

  var sum: array<f32, TILE_M * TILE_N>;
  var squares: array<f32, TILE_M>;
  for (var k = 0u; k < CHUNKS; k++) {
    var w_low: array<vec4f, TILE_N>;
    var w_high: array<vec4f, TILE_N>;
    for (var j = 0u; j < TILE_N; j++) {
      let packed = weight[w_at[j] + k];
      w_low[j] = unpack_low(packed);
      w_high[j] = unpack_high(packed);
    }
    for (var i = 0u; i < TILE_M; i++) {
      var x_low = x[x_at[i] + 2u * k];
      var x_high = x[x_at[i] + 2u * k + 1u];
      if (NORM) {
        squares[i] = dot_add(x_low, x_low, dot_add(x_high, x_high, squares[i]));
        x_low *= gain[2u * k];
        x_high *= gain[2u * k + 1u];
      }
      for (var j = 0u; j < TILE_N; j++) {
        let at = i * TILE_N + j;
        sum[at] = dot_add(x_low, w_low[j], dot_add(x_high, w_high[j], sum[at]));
      }
    }
  }

  for (var i = 0u; i < TILE_M; i++) {
    let row = first_m + i;
    if (row >= n_rows) { break; }
    var scale = 1.0;
    if (NORM) { scale = 1.0 / sqrt(squares[i] / f32(K) + EPS); }
    for (var j = 0u; j < TILE_N; j++) {
      let column = first_n + j;
      if (column >= N) { break; }
      var value = sum[i * TILE_N + j] * scale;
      if (BIAS) { value += bias[FIRST + column]; }
      if (!GATED) {
        store(row, FIRST + column, value);
      } else if (j % 2u == 1u) {
        var gate = sum[i * TILE_N + j - 1u] * scale;
        if (BIAS) { gate += bias[FIRST + column - 1u]; }
        store(row, (FIRST + column) / 2u, silu(gate) * value);
      }
    }
  }
}
