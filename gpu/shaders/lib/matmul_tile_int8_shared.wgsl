// A tile of x · weightᵀ like lib/matmul_tile_int8.wgsl, for many rows on a GPU: a workgroup loads
// two blocks of its int8 rows and columns into workgroup memory, with the weights unpacked to int8
// once, and every lane multiplies TILE_M × TILE_N of them.
//
// Sums have the order of lib/matmul_tile_int8_coalesced.wgsl, bit for bit: for each of the
// SPLIT_K / 4 quads of lanes in turn, four chains, one for each half of each of its two blocks,
// added as (a + b) + (c + d).
//
// Half h of the two blocks of row r is at h · rows + (r ^ 2h): the eight loads that neighbouring
// lanes store, and the sixteen columns that they read, then lie in different banks.
//
// x, weight  see lib/matmul_tile_int8.wgsl
// use: words
// use: weights
// use: int8_half
// use: quantized_rows
// use: scale_rows_q8
// prelude: const TILE_M (4 or 8), const TILE_N (4 or 8), const SPLIT_K
override K: u32; // read by the cost formula only: blocks are whole here
override N: u32;

@group(0) @binding(1) var<storage, read> x: array<Load16>;

const BLOCKS_OF_QUADS = SPLIT_K / 2u; // blocks that all quads of lanes take at a time
const HALVES = 4u; // of two blocks
const COPIED_ROWS = WORKGROUP / HALVES; // rows of x, and of weights, that all lanes copy at a time
const COPIES = GROUP_M / COPIED_ROWS;
const WEIGHT_COPIES = GROUP_N / COPIED_ROWS;
const SUMMED_ROWS = select(1u, 2u * GROUP_M, HAS_MINS);

var<workgroup> x_bytes: array<vec4u, HALVES * GROUP_M>;
var<workgroup> x_scales: array<f32, HALVES * GROUP_M>;
var<workgroup> x_sums: array<f32, SUMMED_ROWS>; // of both blocks
var<workgroup> w_bytes: array<vec4u, HALVES * GROUP_N>;
var<workgroup> w_scales: array<vec2f, 2u * GROUP_N>; // with mins, of both blocks
var<private> sums: array<f32, TILE_M * TILE_N>;
var<private> chains: array<array<f32, TILE_M * TILE_N>, HALVES>;

var<private> x_from: array<u32, COPIES>; // rows of x whose bytes this lane copies
var<private> x_scales_from: u32; // the row whose scales it copies
var<private> weight_from: array<WeightAddress, WEIGHT_COPIES>; // rows of weights that it copies
var<private> scales_from: array<WeightAddress, WEIGHT_COPIES>;
var<private> interleaved_rows: array<u32, WEIGHT_COPIES>;

// Same contract as in lib/matmul_tile.wgsl, for every lane.
fn matmul_tile(first_m: u32, first_n: u32, n_rows: u32, lane: u32) {
  begin_copies(first_m - lane / LANES * TILE_M, first_n - lane % LANES * TILE_N, n_rows, lane);
  for (var first = 0u; first < BLOCKS_OF_QUADS; first += 2u) {
    for (var h = 0u; h < HALVES; h++) { chains[h] = array<f32, TILE_M * TILE_N>(); } // unroll
    for (var block = first; block < BLOCKS; block += BLOCKS_OF_QUADS) {
      copy_blocks(block, lane);
      workgroupBarrier();
      add_half(0u, lane);
      add_half(1u, lane);
      if (block + 1u < BLOCKS) {
        add_half(2u, lane);
        add_half(3u, lane);
      }
      workgroupBarrier();
    }
    for (var s = 0u; s < TILE_M * TILE_N; s++) { // unroll
      sums[s] += (chains[0][s] + chains[1][s]) + (chains[2][s] + chains[3][s]);
    }
  }
}

fn begin_copies(group_m: u32, group_n: u32, n_rows: u32, lane: u32) {
  for (var h = 0u; h < COPIES; h++) { // unroll
    x_from[h] = x_row(group_m + lane / HALVES + h * COPIED_ROWS, n_rows);
  }
  x_scales_from = x_row(group_m + lane / 2u, n_rows);
  for (var h = 0u; h < WEIGHT_COPIES; h++) { // unroll
    let row = weight_row(min(group_n + column_of(lane / HALVES + h * COPIED_ROWS), N - 1u));
    weight_from[h] = blocks_at(row);
    scales_from[h] = scales_at(row);
    interleaved_rows[h] = row % INTERLEAVE;
  }
}

fn x_row(row: u32, n_rows: u32) -> u32 {
  return source_row(min(row, n_rows - 1u)) * BLOCKS * Q8_BLOCK_LOADS;
}

fn x_place(half: u32, row: u32) -> u32 { return half * GROUP_M + (row ^ (2u * half)); }
fn w_place(half: u32, place: u32) -> u32 { return half * GROUP_N + (place ^ (2u * half)); }

// The column of the workgroup that is kept at `place`: those that neighbouring lanes read lie side
// by side.
fn column_of(place: u32) -> u32 { return place % LANES * TILE_N + place / LANES; }

// Copies `block` and the one after it.
fn copy_blocks(block: u32, lane: u32) {
  let half = lane % HALVES;
  let place = lane / HALVES;
  let of_half = min(block + half / 2u, BLOCKS - 1u);
  for (var h = 0u; h < COPIES; h++) { // unroll
    let bytes = words_of(x[x_from[h] + of_half * Q8_BLOCK_LOADS + half % 2u]);
    x_bytes[x_place(half, place + h * COPIED_ROWS)] = bytes;
  }
  let row = lane / 2u;
  if (row < GROUP_M) {
    let which = lane % 2u;
    let of_row = min(block + which, BLOCKS - 1u);
    let of_x = floats_of(x[x_scales_from + of_row * Q8_BLOCK_LOADS + 2u]);
    x_scales[2u * which * GROUP_M + row] = of_x.x;
    x_scales[(2u * which + 1u) * GROUP_M + row] = of_x.y;
    if (HAS_MINS) { x_sums[which * GROUP_M + row] = of_x.z; }
  }
  for (var h = 0u; h < WEIGHT_COPIES; h++) { // unroll
    let bytes = int8_half(weight_from[h], block_offset(of_half), half % 2u);
    w_bytes[w_place(half, place + h * COPIED_ROWS)] = bytes;
    if (half % 2u == 0u) {
      let index = scale_index(of_half, interleaved_rows[h]);
      let word = word_at(scales_from[h], scale_offset(index), scale_word(index));
      w_scales[half / 2u * GROUP_N + place + h * COPIED_ROWS] = scale_min_of(word, index);
    }
  }
}

fn add_half(half: u32, lane: u32) {
  let first_row = lane / LANES * TILE_M;
  var q = array<vec4u, TILE_N>();
  var scales = array<f32, TILE_N>();
  var mins = array<f32, TILE_N>();
  for (var j = 0u; j < TILE_N; j++) { // unroll
    let place = j * LANES + lane % LANES;
    q[j] = w_bytes[w_place(half, place)];
    scales[j] = w_scales[half / 2u * GROUP_N + place].x;
    if (HAS_MINS && half % 2u == 0u) { mins[j] = w_scales[half / 2u * GROUP_N + place].y; }
  }
  for (var i = 0u; i < TILE_M; i++) { // unroll
    let row = first_row + i;
    if (HAS_MINS && half % 2u == 0u) {
      let sum_of_x = x_sums[half / 2u * GROUP_M + row];
      for (var j = 0u; j < TILE_N; j++) { // unroll
        let s = i * TILE_N + j;
        chains[half][s] = fma(mins[j], sum_of_x, chains[half][s]);
      }
    }
    let p = x_bytes[x_place(half, row)];
    let x_scale = x_scales[half * GROUP_M + row];
    for (var j = 0u; j < TILE_N; j++) { // unroll
      let s = i * TILE_N + j;
      chains[half][s] = add_int8_half(p, q[j], scales[j], x_scale, chains[half][s]);
    }
  }
}
