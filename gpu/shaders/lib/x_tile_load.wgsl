// Rows of x of a matmul tile: every lane loads all of them. See lib/matmul_tile.wgsl.
const TILE_ROWS = TILE_M;

var<private> rows_at: array<u32, TILE_M>; // offsets of the rows in x
var<private> squares: array<f32, TILE_M>; // Σ x²

fn begin_rows(first_m: u32, n_rows: u32, lane: u32) {
  for (var i = 0u; i < TILE_M; i++) {
    rows_at[i] = source_row(min(first_m + i, n_rows - 1u)) * BLOCKS * BLOCK_VEC4S;
  }
}

fn add_block(block: u32, lane: u32) {
  for (var vec4_index = 0u; vec4_index < BLOCK_VEC4S; vec4_index++) {
    add_vec4(block, vec4_index, lane);
  }
}

// Vec4 `vec4_index` of `block`, of all rows.
fn rows_of(first: u32, block: u32, vec4_index: u32, lane: u32) -> array<vec4f, TILE_ROWS> {
  let at = block * BLOCK_VEC4S + vec4_index;
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
