// The rows of x of a tile: every lane loads all of them. See lib/product.wgsl.
const TILE_ROWS = TILE_M;

var<private> rows_at: array<u32, TILE_M>; // where in x they begin
var<private> squares: array<f32, TILE_M>; // Σ x²

fn begin_rows(first_m: u32, n_rows: u32, lane: u32) {
  for (var i = 0u; i < TILE_M; i++) {
    rows_at[i] = source_row(min(first_m + i, n_rows - 1u)) * BLOCKS * BLOCK_FOURS;
  }
}

fn first_block(lane: u32) -> u32 { return lane % STRANDS; }

fn add_block(block: u32, lane: u32) {
  for (var four = 0u; four < BLOCK_FOURS; four++) { add_four(block, four, lane); }
}

// The fours at `four` of `block`, of all rows.
fn rows_of(first: u32, block: u32, four: u32, lane: u32) -> array<vec4f, TILE_ROWS> {
  let at = block * BLOCK_FOURS + four;
  var rows = array<vec4f, TILE_ROWS>();
  for (var i = 0u; i < TILE_M; i++) {
    rows[i] = floats_of(x[rows_at[i] + at]);
    if (NORM) {
      squares[i] = dot_add(rows[i], rows[i], squares[i]);
      rows[i] *= floats_of(gain[at]);
    }
  }
  return rows;
}

fn total_squares() -> array<f32, TILE_M> { return squares; }
