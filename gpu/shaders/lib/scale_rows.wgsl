// The scales of RMSNorm, by which the sums of a matmul tile are still to be multiplied:
// norm(x) · weightᵀ is (x · gain) · weightᵀ times a scale for each row.
//
// The product with a bias after it is one `fma`: a compiler may fuse the two in one kernel and not
// in another, and kernels of few and of many rows must give the same bits.
//
// gain  [8 · BLOCKS] vec4; with PRE_NORMED, the scale of each row of x (not bound without a norm)
override K: u32;
override EPS: f32 = 0.0;
override NORM: bool = false;
override PRE_NORMED: bool = false;

@group(0) @binding(3) var<storage, read> gain: array<Load16>; // optional

var<private> row_scales: array<f32, SUMS_M>;

// For the rows of a lane's sums from `first_m` on. `squares`: Σ x² of each, if NORM.
fn begin_scales(first_m: u32, n_rows: u32, squares: array<f32, SUMS_M>) {
  if (!NORM && !PRE_NORMED) { return; }
  var totals = squares;
  for (var i = 0u; i < SUMS_M; i++) { // unroll
    row_scales[i] = 1.0 / sqrt(totals[i] / f32(K) + EPS);
    if (PRE_NORMED) {
      let row = source_row(min(first_m + i, n_rows - 1u));
      row_scales[i] = floats_of(gain[row / 4u])[row % 4u];
    }
  }
}

// Scale of row `i` of a lane's sums.
fn row_scale(i: u32) -> f32 {
  if (!NORM && !PRE_NORMED) { return 1.0; }
  return row_scales[i];
}
