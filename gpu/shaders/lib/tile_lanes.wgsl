// Place of a lane's matmul tile: COLUMNS tiles of a workgroup lie side by side in N.
// prelude: const TILE_M, const TILE_N, const SPLIT_K, const COLUMNS
const GROUP_M = TILE_M; // rows of a workgroup
const SUMS_M = TILE_M;  // rows and columns of a lane's sums
const SUMS_N = TILE_N;

fn tile_row(group: u32, lane: u32) -> u32 { return group * TILE_M; }
fn tile_column(group: u32, lane: u32) -> u32 {
  return (group * COLUMNS + lane / SPLIT_K) * TILE_N;
}

// Whether the lane has sums once `matmul_tile` has returned; their first row and column.
fn has_sums(lane: u32) -> bool { return lane % SPLIT_K == 0u; }
fn sums_row(group: u32, lane: u32) -> u32 { return tile_row(group, lane); }
fn sums_column(group: u32, lane: u32) -> u32 { return tile_column(group, lane); }
