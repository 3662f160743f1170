// A tile of x · weightᵀ like lib/matmul_tile.wgsl, for many rows on a GPU: a workgroup loads a
// block of its rows and columns into workgroup memory, with the weights dequantised once, and every
// lane multiplies TILE_M × TILE_N of them.
//
// Sums have the order of lib/matmul_tile_coalesced.wgsl, bit for bit: for each of the SPLIT_K / 4
// quads in turn, four chains over its blocks, one for each quarter of a block, added as
// (a + b) + (c + d). The norm must have been applied (PRE_NORMED) or absent.
//
// In workgroup memory, vec4 v of row r is at v · rows + (r ^ v): the eight vec4s that neighbouring
// lanes store, and the sixteen columns that they read, then lie in different banks.
//
// x, weight, gain  see lib/matmul_tile.wgsl
// use: words
// use: weights
// use: block_quarter
// use: fma4
// use: scale_rows
// prelude: const TILE_M (4 or 8), const TILE_N (4 or 8), const SPLIT_K,
//          const LANE_QUARTERS = 1
override N: u32;

@group(0) @binding(1) var<storage, read> x: array<Load16>;

const QUADS_OF_K = SPLIT_K / 4u;
const COPIED_ROWS = WORKGROUP / BLOCK_VEC4S; // rows of x that all lanes copy at a time
const COPIES = GROUP_M / COPIED_ROWS;
const COPIED_COLUMNS = WORKGROUP / 4u;
const WEIGHT_COPIES = GROUP_N / COPIED_COLUMNS;

var<workgroup> x_block: array<vec4f, BLOCK_VEC4S * GROUP_M>;
var<workgroup> w_block: array<vec4f, BLOCK_VEC4S * GROUP_N>;
var<private> sums: array<f32, TILE_M * TILE_N>;
var<private> chains: array<array<f32, TILE_M * TILE_N>, 4>; // of each quarter of a block

var<private> x_from: array<u32, COPIES>; // the vec4s of x that this lane copies, in block 0
var<private> weight_from: array<WeightAddress, WEIGHT_COPIES>; // rows whose quarter it copies
var<private> scales_from: array<WeightAddress, WEIGHT_COPIES>;
var<private> interleaved_rows: array<u32, WEIGHT_COPIES>;

// Same contract as in lib/matmul_tile.wgsl, for every lane.
fn matmul_tile(first_m: u32, first_n: u32, n_rows: u32, lane: u32) {
  begin_copies(first_m - lane / LANES * TILE_M, first_n - lane % LANES * TILE_N, n_rows, lane);
  for (var quad = 0u; quad < QUADS_OF_K; quad++) {
    for (var q = 0u; q < 4u; q++) { chains[q] = array<f32, TILE_M * TILE_N>(); } // unroll
    for (var block = quad; block < BLOCKS; block += QUADS_OF_K) {
      copy_block(block, lane);
      workgroupBarrier();
      add_quarter(0u, lane);
      add_quarter(1u, lane);
      add_quarter(2u, lane);
      add_quarter(3u, lane);
      workgroupBarrier();
    }
    for (var s = 0u; s < TILE_M * TILE_N; s++) { // unroll
      sums[s] += (chains[0][s] + chains[1][s]) + (chains[2][s] + chains[3][s]);
    }
  }
  begin_scales(first_m, n_rows, array<f32, SUMS_M>());
}

fn begin_copies(group_m: u32, group_n: u32, n_rows: u32, lane: u32) {
  for (var h = 0u; h < COPIES; h++) { // unroll
    let row = source_row(min(group_m + lane / BLOCK_VEC4S + h * COPIED_ROWS, n_rows - 1u));
    x_from[h] = row * BLOCKS * BLOCK_VEC4S + lane % BLOCK_VEC4S;
  }
  for (var h = 0u; h < WEIGHT_COPIES; h++) { // unroll
    let row = weight_row(min(group_n + lane / 4u + h * COPIED_COLUMNS, N - 1u));
    weight_from[h] = blocks_at(row);
    scales_from[h] = scales_at(row);
    interleaved_rows[h] = row % INTERLEAVE;
  }
}

fn x_place(vec4_index: u32, row: u32) -> u32 { return vec4_index * GROUP_M + (row ^ vec4_index); }
fn w_place(vec4_index: u32, row: u32) -> u32 { return vec4_index * GROUP_N + (row ^ vec4_index); }

// Where column `column` of the workgroup is kept: those that neighbouring lanes read side by side.
fn column_place(column: u32) -> u32 { return column % TILE_N * LANES + column / TILE_N; }

fn copy_block(block: u32, lane: u32) {
  for (var h = 0u; h < COPIES; h++) { // unroll
    let vec4_index = lane % BLOCK_VEC4S;
    let row = lane / BLOCK_VEC4S + h * COPIED_ROWS;
    x_block[x_place(vec4_index, row)] = floats_of(x[x_from[h] + block * BLOCK_VEC4S]);
  }
  for (var h = 0u; h < WEIGHT_COPIES; h++) { // unroll
    var scale_min = vec2f();
    if (SCALES_PER_LOAD > 0u) {
      let index = scale_index(block, interleaved_rows[h]);
      let word = word_at(scales_from[h], scale_offset(index), scale_word(index));
      scale_min = scale_min_of(word, index);
    }
    let quarter = lane % 4u;
    let loaded = load_quarters(weight_from[h], block_offset(block), quarter);
    let column = column_place(lane / 4u + h * COPIED_COLUMNS);
    w_block[w_place(2u * quarter, column)] = quarter_vec4(loaded, 0u, scale_min);
    w_block[w_place(2u * quarter + 1u, column)] = quarter_vec4(loaded, 1u, scale_min);
  }
}

fn add_quarter(quarter: u32, lane: u32) {
  for (var half = 0u; half < 2u; half++) { // unroll
    let v = 2u * quarter + half;
    var w = array<vec4f, TILE_N>();
    for (var j = 0u; j < TILE_N; j++) { // unroll
      w[j] = w_block[w_place(v, j * LANES + lane % LANES)];
    }
    for (var i = 0u; i < TILE_M; i++) { // unroll
      let row = x_block[x_place(v, lane / LANES * TILE_M + i)];
      for (var j = 0u; j < TILE_N; j++) { // unroll
        let s = i * TILE_N + j;
        chains[quarter][s] = dot_add(row, w[j], chains[quarter][s]);
      }
    }
  }
}
