// Place of a lane's matmul tile: COLUMNS tiles of a workgroup lie side by side in N.
// prelude: const TILE_M, const TILE_N, const SPLIT_K, const COLUMNS
const GROUP_M = TILE_M; // rows of a workgroup

fn tile_row(group: u32, lane: u32) -> u32 { return group * TILE_M; }
fn tile_column(group: u32, lane: u32) -> u32 {
  return (group * COLUMNS + lane / SPLIT_K) * TILE_N;
}

// Whether the lane has the sums of its tile once `matmul_tile` has returned.
fn has_sums(lane: u32) -> bool { return lane % SPLIT_K == 0u; }
