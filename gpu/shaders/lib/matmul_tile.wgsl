// A tile of x · weightᵀ with the RMSNorm of x folded in: TILE_M rows × TILE_N columns.
//
//   norm   x[k] · gain[k] / sqrt(mean(x²) + EPS)      RMSNorm (Zhang & Sennrich 2019)
//
// The mean of squares is summed in the same loop as the product and applied after it, so the norm
// costs no pass of its own. STRANDS lanes share a tile, each summing every STRANDS-th block of k;
// the strands are added up in order. Within a strand every output is one chain of fused
// multiply-adds and every mean of squares eight of them: a row's bits depend on STRANDS alone, not
// on the tile or on the rows beside it.
//
// Where there are many rows, norm_parts.wgsl has multiplied them by their gain and found their
// scales before: SCALED. The sums and their bits are the same.
//
// A block of x is eight fours (vec4) a row. The file that stands in for `x_tile` says how a lane
// comes by those of the tile's rows: by loading all of them, or by loading one and trading.
//
// x       [rows][8 · BLOCKS] vec4; columns past K are zero
// weight  see lib/columns.wgsl
// gain    [8 · BLOCKS] vec4; when SCALED, the scale of each row of x (any buffer without a norm)
//
// The shader that uses this says of which row of x a row of the result is made: `source_row`.
// use: words
// use: columns
// use: x_tile
// use: fma4
// use: strands
// prelude: const TILE_M (1, 2, 4, 8 or 16), const TILE_N, const STRANDS, const COLUMNS
override K: u32;
override EPS: f32 = 0.0;
override NORM: bool = false;
override SCALED: bool = false;

@group(0) @binding(1) var<storage, read> x: array<Sixteen>;
@group(0) @binding(3) var<storage, read> gain: array<Sixteen>;

var<private> packed: array<vec4u, TILE_N>;

// Leaves the tile from row `first_m` and column `first_n` on in `sums` of the lanes of strand 0.
// Rows and columns past the edge repeat the last one. `lane`: of the workgroup.
fn product(first_m: u32, first_n: u32, n_rows: u32, lane: u32) {
  begin_rows(first_m, n_rows, lane);
  begin_columns(first_n);
  for (var block = first_block(lane); block < BLOCKS; block += STRANDS) {
    load_grids(block);
    add_block(block, lane);
  }
  var totals = array<f32, TILE_M>();
  if (NORM) { totals = total_squares(); }
  if (STRANDS > 1u) { join_strands(&totals, lane); }
  if (NORM || SCALED) {
    for (var i = 0u; i < TILE_M; i++) {
      var scale = 1.0 / sqrt(totals[i] / f32(K) + EPS);
      if (SCALED) {
        let row = source_row(min(first_m + i, n_rows - 1u));
        scale = floats_of(gain[row / 4u])[row % 4u];
      }
      for (var j = 0u; j < TILE_N; j++) { sums[i * TILE_N + j] *= scale; }
    }
  }
}

// Adds the products of a block of one row of x, given as its fours, a column of the tile at a time.
// The loads of a column's block, which lie side by side, follow each other, and what each brings is
// used up before the next. The order of a column's sum is that of `add_four`.
fn add_columns(block: u32, row: array<vec4f, BLOCK_FOURS>) {
  for (var j = 0u; j < TILE_N; j++) {
    var sum = sums[j];
    for (var i = 0u; i < BLOCK_PACKED; i++) {
      let loaded = load_at(packed_at[j], to_block(block) + i);
      for (var f = 0u; f < PACKED_FOURS; f++) {
        sum = dot_add(row[i * PACKED_FOURS + f], four_of(loaded, f, grid[j]), sum);
      }
    }
    sums[j] = sum;
  }
}

// Adds the products of four columns of x with four weights of each column of the tile.
fn add_four(block: u32, four: u32, lane: u32) {
  if (four % PACKED_FOURS == 0u) {
    for (var j = 0u; j < TILE_N; j++) {
      packed[j] = load_at(packed_at[j], to_block(block) + four / PACKED_FOURS);
    }
  }
  var w = array<vec4f, TILE_N>();
  for (var j = 0u; j < TILE_N; j++) { w[j] = four_of(packed[j], four % PACKED_FOURS, grid[j]); }
  for (var h = 0u; h < TILE_M; h += TILE_ROWS) {
    let rows = rows_of(h, block, four, lane);
    for (var i = 0u; i < TILE_ROWS; i++) {
      for (var j = 0u; j < TILE_N; j++) {
        let s = (h + i) * TILE_N + j;
        sums[s] = dot_add(rows[i], w[j], sums[s]);
      }
    }
  }
}
