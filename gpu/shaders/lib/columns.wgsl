// The columns of a tile of a product: where their rows of the weight lie, and the grids of a block.
//
// weight  [N] rows of one shard, see lib/weights.wgsl
//
// The shader that uses this says which row of the weight a column is: `weight_row`. Columns that
// follow each other are rows that do, from a multiple of ABREAST on.
// use: weights
// prelude: const TILE_N
override N: u32;

var<private> packed_at: array<Place, TILE_N>; // where the blocks of the columns begin
var<private> grid_at: array<Place, TILE_N>;   // and their grids
var<private> sides: array<u32, TILE_N>;       // which they are of the rows that lie abreast
var<private> grid: array<vec2f, TILE_N>;      // what `load_grids` loaded

// Columns from `first_n` on, a multiple of TILE_N; those past the edge repeat the last one, with
// grids that may be another's.
fn begin_columns(first_n: u32) {
  for (var j = 0u; j < TILE_N; j++) {
    let row = weight_row(min(first_n + j, N - 1u));
    packed_at[j] = blocks_at(row);
    grid_at[j] = grids_at(row);
    // By the column drivers know the lowest bits of it, and so the word of a load, beforehand.
    sides[j] = select(row % ABREAST, first_n % ABREAST + j, ABREAST % TILE_N == 0u);
  }
}

// Where the columns lie abreast, so do their grids, and one load has those of several.
fn load_grids(block: u32) {
  if (GRIDS_PACKED == 0u) { return; }
  var loaded = vec4u();
  for (var j = 0u; j < TILE_N; j++) {
    let index = grid_index(block, sides[j]);
    if (ABREAST % TILE_N == 0u) {
      if (j % LOAD_GRIDS == 0u) { loaded = load_at(grid_at[j], to_grid(index)); }
      grid[j] = grid_of(loaded[grid_word(index)], index);
    } else {
      grid[j] = grid_of(word_at(grid_at[j], to_grid(index), grid_word(index)), index);
    }
  }
}
