// A tile of x · weightᵀ like lib/matmul_tile.wgsl, for few rows on a GPU: neighbouring lanes load
// neighbouring bytes. Four lanes share a block, a quarter each, and SPLIT_K / 4 of these quads
// share the blocks of k. A lane loads its weights once for all rows of the tile.
//
// Every output is one chain of fused multiply-adds in each lane, and lib/split_k.wgsl adds the
// chains. lib/matmul_tile_shared.wgsl adds in the same order.
//
// x, weight, gain  see lib/matmul_tile.wgsl
// use: words
// use: columns
// use: block_quarter
// use: fma4
// use: split_k
// use: scale_rows

@group(0) @binding(1) var<storage, read> x: array<Load16>;

var<private> x_at: array<u32, TILE_M>; // offsets of the lane's quarter in the tile's rows
var<private> squares: array<f32, TILE_M>; // Σ x² of the lane's quarters

// Same contract as in lib/matmul_tile.wgsl.
fn matmul_tile(first_m: u32, first_n: u32, n_rows: u32, lane: u32) {
  let quarter = lane % 4u;
  for (var i = 0u; i < TILE_M; i++) {
    let row = source_row(min(first_m + i, n_rows - 1u));
    x_at[i] = row * BLOCKS * BLOCK_VEC4S + 2u * quarter;
  }
  begin_columns(first_n);
  for (var block = lane % SPLIT_K / 4u; block < BLOCKS; block += SPLIT_K / 4u) {
    add_quarter(block, quarter);
  }
  var totals = squares;
  reduce_split_k(&totals, lane);
  begin_scales(first_m, n_rows, totals);
}

fn add_quarter(block: u32, quarter: u32) {
  load_scales(block);
  var w = array<array<vec4f, 2>, TILE_N>();
  for (var j = 0u; j < TILE_N; j++) {
    w[j] = block_quarter(packed_at[j], block_offset(block), quarter, scale_min[j]);
  }
  let vec4_at = block * BLOCK_VEC4S;
  for (var i = 0u; i < TILE_M; i++) {
    var low = floats_of(x[x_at[i] + vec4_at]);
    var high = floats_of(x[x_at[i] + vec4_at + 1u]);
    if (NORM) {
      squares[i] = dot_add(high, high, dot_add(low, low, squares[i]));
      let gain_at = vec4_at + 2u * quarter;
      low *= floats_of(gain[gain_at]);
      high *= floats_of(gain[gain_at + 1u]);
    }
    for (var j = 0u; j < TILE_N; j++) {
      let s = i * TILE_N + j;
      sums[s] = dot_add(high, w[j][1], dot_add(low, w[j][0], sums[s]));
    }
  }
}
