// Rows of x of a matmul tile: each of eight lanes loads one vec4 and shares it. The workgroup is
// these eight lanes, in one subgroup. See lib/matmul_tile.wgsl.
//
// Eight vec4s are shared at a time, of up to eight rows: vec4 e is of row e % TILE_ROWS, e /
// TILE_ROWS after the first.
// needs: subgroups
const TILE_ROWS = min(TILE_M, 8u);
const TILE_EIGHTS = TILE_M / TILE_ROWS; // groups of eight rows
const SHUFFLED_VEC4S = 8u / TILE_ROWS;    // vec4s of one row among eight

var<private> mine: array<vec4f, TILE_EIGHTS>;
var<private> mine_at: array<u32, TILE_EIGHTS>; // offsets of their rows in x
var<private> squares: array<f32, TILE_M>; // Σ mine², one chain per vec4 of a block

fn begin_rows(first_m: u32, n_rows: u32, lane: u32) {
  for (var h = 0u; h < TILE_EIGHTS; h++) {
    let row = min(first_m + h * 8u + lane % TILE_ROWS, n_rows - 1u);
    mine_at[h] = source_row(row) * BLOCKS * BLOCK_VEC4S + lane / TILE_ROWS;
  }
}

// With one row, goes column by column if a block has more than one load. The rest is unrolled by
// hand: drivers do not unroll a loop of this size, and all registers spill.
fn add_block(block: u32, lane: u32) {
  if (TILE_M == 1u && BLOCK_LOADS > 1u) {
    load_mine(0u, block, 0u, lane);
    add_columns(block, shuffled(0u));
    return;
  }
  add_vec4(block, 0u, lane);
  add_vec4(block, 1u, lane);
  add_vec4(block, 2u, lane);
  add_vec4(block, 3u, lane);
  add_vec4(block, 4u, lane);
  add_vec4(block, 5u, lane);
  add_vec4(block, 6u, lane);
  add_vec4(block, 7u, lane);
}

// Vec4 `vec4_index` of `block`, of TILE_ROWS rows from row `first` of the tile on.
fn rows_of(first: u32, block: u32, vec4_index: u32, lane: u32) -> array<vec4f, TILE_ROWS> {
  let h = first / 8u;
  if (vec4_index % SHUFFLED_VEC4S == 0u) { load_mine(h, block, vec4_index, lane); }
  let eight = shuffled(h);
  var rows = array<vec4f, TILE_ROWS>();
  for (var i = 0u; i < TILE_ROWS; i++) {
    rows[i] = eight[vec4_index % SHUFFLED_VEC4S * TILE_ROWS + i];
  }
  return rows;
}

// Loads this lane's vec4 of eight rows, from `vec4_index` of `block` on.
fn load_mine(h: u32, block: u32, vec4_index: u32, lane: u32) {
  let at = block * BLOCK_VEC4S + vec4_index;
  mine[h] = floats_of(x[mine_at[h] + at]);
  if (NORM) {
    let chain = vec4_index / SHUFFLED_VEC4S * TILE_EIGHTS + h;
    squares[chain] = dot_add(mine[h], mine[h], squares[chain]);
    mine[h] *= floats_of(gain[at + lane / TILE_ROWS]);
  }
}

// The vec4s of all eight lanes.
fn shuffled(h: u32) -> array<vec4f, 8> {
  let m = mine[h];
  return array<vec4f, 8>(subgroupBroadcast(m, 0u), subgroupBroadcast(m, 1u),
                         subgroupBroadcast(m, 2u), subgroupBroadcast(m, 3u),
                         subgroupBroadcast(m, 4u), subgroupBroadcast(m, 5u),
                         subgroupBroadcast(m, 6u), subgroupBroadcast(m, 7u));
}

// Σ x² of each row of the tile: its eight chains, added in order.
fn total_squares() -> array<f32, TILE_M> {
  var total = array<f32, TILE_M>();
  for (var chain = 0u; chain < TILE_M; chain++) {
    let m = squares[chain];
    let shuffled = array<f32, 8>(subgroupBroadcast(m, 0u), subgroupBroadcast(m, 1u),
                               subgroupBroadcast(m, 2u), subgroupBroadcast(m, 3u),
                               subgroupBroadcast(m, 4u), subgroupBroadcast(m, 5u),
                               subgroupBroadcast(m, 6u), subgroupBroadcast(m, 7u));
    let first = chain % TILE_EIGHTS * 8u;
    for (var e = 0u; e < 8u; e++) { total[first + e % TILE_ROWS] += shuffled[e]; }
  }
  return total;
}
