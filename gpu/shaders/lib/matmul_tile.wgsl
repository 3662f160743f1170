// A tile of x · weightᵀ with the RMSNorm of x folded in: TILE_M rows × TILE_N columns.
//
//   norm   x[k] · gain[k] / sqrt(mean(x²) + EPS)      RMSNorm (Zhang & Sennrich 2019)
//
// Used by matmul, qkv and moe_matmul. The mean of squares is summed in the matmul's own loop and
// applied after it, so the norm costs no pass of its own. Every output is one chain of fused
// multiply-adds and every mean of squares one or eight of them: a row's bits do not depend on the
// tile or on other rows.
//
// PRE_NORMED: rms_norm_split.wgsl has already applied the gain and computed the scale of each row.
// The sums and their bits are the same.
//
// A block of x is eight vec4s per row. The variant of `x_tile` says how a lane gets those of the
// tile's rows: it loads all of them, or loads one and shuffles.
//
// x       [rows][8 · BLOCKS] vec4; columns past K are zero
// weight  see lib/columns.wgsl
// gain    [8 · BLOCKS] vec4; with PRE_NORMED, the scale of each row of x (not bound without a norm)
//
// The shader that uses this defines `source_row(row)`, the row of x for a row of the result.
// use: words
// use: columns
// use: x_tile
// use: fma4
// use: split_k
// use: scale_rows
// prelude: const TILE_M (1, 2, 4, 8 or 16), const TILE_N, const SPLIT_K = 1, const COLUMNS

@group(0) @binding(1) var<storage, read> x: array<Load16>;

var<private> packed: array<vec4u, TILE_N>;

// Computes the tile at row `first_m` and column `first_n` into `sums`, still to be multiplied by
// `row_scale`. Rows and columns past the edge repeat the last one.
fn matmul_tile(first_m: u32, first_n: u32, n_rows: u32, lane: u32) {
  begin_rows(first_m, n_rows, lane);
  begin_columns(first_n);
  for (var block = 0u; block < BLOCKS; block++) {
    load_scales(block);
    add_block(block, lane);
  }
  var totals = array<f32, SUMS_M>();
  if (NORM) { totals = total_squares(); }
  begin_scales(first_m, n_rows, totals);
}

// Adds one block of one row of x, column by column. The loads of a column's block are consecutive,
// and each is used up before the next. Sums have the order of `add_vec4`.
fn add_columns(block: u32, row: array<vec4f, BLOCK_VEC4S>) {
  for (var j = 0u; j < TILE_N; j++) {
    var sum = sums[j];
    for (var i = 0u; i < BLOCK_LOADS; i++) {
      let loaded = load_at(packed_at[j], block_offset(block) + i);
      for (var f = 0u; f < LOAD_VEC4S; f++) {
        sum = dot_add(row[i * LOAD_VEC4S + f], vec4_of(loaded, f, scale_min[j]), sum);
      }
    }
    sums[j] = sum;
  }
}

// Adds one vec4 of every row of x times the matching weights of every column.
fn add_vec4(block: u32, vec4_index: u32, lane: u32) {
  if (vec4_index % LOAD_VEC4S == 0u) {
    for (var j = 0u; j < TILE_N; j++) {
      packed[j] = load_at(packed_at[j], block_offset(block) + vec4_index / LOAD_VEC4S);
    }
  }
  var w = array<vec4f, TILE_N>();
  for (var j = 0u; j < TILE_N; j++) {
    w[j] = vec4_of(packed[j], vec4_index % LOAD_VEC4S, scale_min[j]);
  }
  for (var h = 0u; h < TILE_M; h += TILE_ROWS) {
    let rows = rows_of(h, block, vec4_index, lane);
    for (var i = 0u; i < TILE_ROWS; i++) {
      for (var j = 0u; j < TILE_N; j++) {
        let s = (h + i) * TILE_N + j;
        sums[s] = dot_add(rows[i], w[j], sums[s]);
      }
    }
  }
}
