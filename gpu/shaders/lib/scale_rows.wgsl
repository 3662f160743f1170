// The scale of RMSNorm, applied to the sums of a matmul tile: norm(x) · weightᵀ is
// (x · gain) · weightᵀ times a scale for each row.
//
// gain  [8 · BLOCKS] vec4; with PRE_NORMED, the scale of each row of x (any buffer: no norm)
override K: u32;
override EPS: f32 = 0.0;
override NORM: bool = false;
override PRE_NORMED: bool = false;

@group(0) @binding(3) var<storage, read> gain: array<Load16>;

// `squares`: Σ x² of each row of the tile, if NORM.
fn scale_rows(first_m: u32, n_rows: u32, squares: array<f32, TILE_M>) {
  if (!NORM && !PRE_NORMED) { return; }
  var totals = squares;
  for (var i = 0u; i < TILE_M; i++) {
    var scale = 1.0 / sqrt(totals[i] / f32(K) + EPS);
    if (PRE_NORMED) {
      let row = source_row(min(first_m + i, n_rows - 1u));
      scale = floats_of(gain[row / 4u])[row % 4u];
    }
    for (var j = 0u; j < TILE_N; j++) { sums[i * TILE_N + j] *= scale; }
  }
}
