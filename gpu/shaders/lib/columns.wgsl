// Columns of a matmul tile: addresses of their weight rows, and the scales and mins of a block.
//
// weight  [N] rows of one shard, see lib/weights.wgsl
//
// The shader that uses this defines `weight_row(column)`. Consecutive columns are consecutive rows,
// starting at a multiple of INTERLEAVE.
// use: weights
// prelude: const TILE_N
override N: u32;

var<private> packed_at: array<WeightAddress, TILE_N>; // blocks of each column
var<private> scales_begin: array<WeightAddress, TILE_N>; // scales of each column
var<private> interleaved_rows: array<u32, TILE_N>; // index of each row among the interleaved rows
var<private> scale_min: array<vec2f, TILE_N>; // set by `load_scales`

// Starts at column `first_n`, a multiple of TILE_N. Columns past the edge repeat the last one, with
// scales that may be of another column.
fn begin_columns(first_n: u32) {
  for (var j = 0u; j < TILE_N; j++) { // unroll
    let row = weight_row(min(first_n + j, N - 1u));
    packed_at[j] = blocks_at(row);
    scales_begin[j] = scales_at(row);
    // Computed from the column, so that drivers know its low bits (the word of a load) statically.
    let by_column = first_n % INTERLEAVE + j;
    interleaved_rows[j] = select(row % INTERLEAVE, by_column, INTERLEAVE % TILE_N == 0u);
  }
}

// Loads the scales of a block. If all columns are interleaved rows, one load holds several scales.
fn load_scales(block: u32) {
  if (SCALES_PER_LOAD == 0u) { return; }
  var loaded = vec4u();
  for (var j = 0u; j < TILE_N; j++) { // unroll
    let index = column_scale_index(j, block);
    if (INTERLEAVE % TILE_N == 0u) {
      if (j % SCALES_DIVISOR == 0u) { loaded = load_at(scales_begin[j], scale_offset(index)); }
      scale_min[j] = scale_min_of(loaded[scale_word(index)], index);
    } else {
      scale_min[j] = scale_min_of(load_scale(j, block), index);
    }
  }
}

// The index of the scale of a block of column `j`, and the word that holds it.
fn column_scale_index(j: u32, block: u32) -> u32 {
  return scale_index(block, interleaved_rows[j]);
}
fn load_scale(j: u32, block: u32) -> u32 {
  let index = column_scale_index(j, block);
  return word_at(scales_begin[j], scale_offset(index), scale_word(index));
}
