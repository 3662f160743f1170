// The rows of x of a tile: each of eight lanes loads one element and all of them see it. The
// workgroup is these eight lanes, in one subgroup. See lib/product.wgsl.
//
// Eight elements are traded at a time, of up to eight rows: element e is of row e % TILE_ROWS, its
// four e / TILE_ROWS after the first.
// needs: subgroups
const TILE_ROWS = min(TILE_M, 8u);
const TILE_EIGHTS = TILE_M / TILE_ROWS; // eights of rows
const TRADED_FOURS = 8u / TILE_ROWS;    // fours of a row among eight elements

var<private> mine: array<vec4f, TILE_EIGHTS>;
var<private> mine_at: array<u32, TILE_EIGHTS>; // where in x their row begins
var<private> squares: array<f32, TILE_M>; // Σ mine², a chain for each four of a block

fn begin_rows(first_m: u32, n_rows: u32, lane: u32) {
  for (var h = 0u; h < TILE_EIGHTS; h++) {
    let row = min(first_m + h * 8u + lane % TILE_ROWS, n_rows - 1u);
    mine_at[h] = source_row(row) * BLOCKS * BLOCK_FOURS + lane / TILE_ROWS;
  }
}

// All lanes walk together: there is one strand.
fn first_block(lane: u32) -> u32 { return 0u; }

// One row takes the weight column by column where a block is more than one load. Else written out:
// drivers leave a loop of this size standing, and everything kept spills.
fn add_block(block: u32, lane: u32) {
  if (TILE_M == 1u && BLOCK_PACKED > 1u) {
    load_mine(0u, block, 0u, lane);
    add_columns(block, traded(0u));
    return;
  }
  add_four(block, 0u, lane);
  add_four(block, 1u, lane);
  add_four(block, 2u, lane);
  add_four(block, 3u, lane);
  add_four(block, 4u, lane);
  add_four(block, 5u, lane);
  add_four(block, 6u, lane);
  add_four(block, 7u, lane);
}

// The fours at `four` of `block`, of the TILE_ROWS rows from row `first` of the tile on.
fn rows_of(first: u32, block: u32, four: u32, lane: u32) -> array<vec4f, TILE_ROWS> {
  let h = first / 8u;
  if (four % TRADED_FOURS == 0u) { load_mine(h, block, four, lane); }
  let eight = traded(h);
  var rows = array<vec4f, TILE_ROWS>();
  for (var i = 0u; i < TILE_ROWS; i++) { rows[i] = eight[four % TRADED_FOURS * TILE_ROWS + i]; }
  return rows;
}

// Loads this lane's element of eight rows, from `four` of `block` on.
fn load_mine(h: u32, block: u32, four: u32, lane: u32) {
  let at = block * BLOCK_FOURS + four;
  mine[h] = floats_of(x[mine_at[h] + at]);
  if (NORM) {
    let chain = four / TRADED_FOURS * TILE_EIGHTS + h;
    squares[chain] = dot_add(mine[h], mine[h], squares[chain]);
    mine[h] *= floats_of(gain[at + lane / TILE_ROWS]);
  }
}

// The elements of all eight lanes.
fn traded(h: u32) -> array<vec4f, 8> {
  let m = mine[h];
  return array<vec4f, 8>(subgroupBroadcast(m, 0u), subgroupBroadcast(m, 1u),
                         subgroupBroadcast(m, 2u), subgroupBroadcast(m, 3u),
                         subgroupBroadcast(m, 4u), subgroupBroadcast(m, 5u),
                         subgroupBroadcast(m, 6u), subgroupBroadcast(m, 7u));
}

// Σ x² of each row of the tile: its eight chains added up in order.
fn total_squares() -> array<f32, TILE_M> {
  var total = array<f32, TILE_M>();
  for (var chain = 0u; chain < TILE_M; chain++) {
    let m = squares[chain];
    let traded = array<f32, 8>(subgroupBroadcast(m, 0u), subgroupBroadcast(m, 1u),
                               subgroupBroadcast(m, 2u), subgroupBroadcast(m, 3u),
                               subgroupBroadcast(m, 4u), subgroupBroadcast(m, 5u),
                               subgroupBroadcast(m, 6u), subgroupBroadcast(m, 7u));
    let first = chain % TILE_EIGHTS * 8u;
    for (var e = 0u; e < 8u; e++) { total[first + e % TILE_ROWS] += traded[e]; }
  }
  return total;
}
