// Place of a lane's matmul tile, for lib/matmul_tile_coalesced.wgsl: COLUMNS tiles of a workgroup
// lie side by side in N. When they are summed, a lane has SUMS_N columns of one row.
// prelude: const TILE_M, const TILE_N, const SPLIT_K, const COLUMNS, const LANE_QUADS,
//          const LANE_QUARTERS, const SUMS_N
const LANES = SPLIT_K / (LANE_QUADS * LANE_QUARTERS); // of a tile
const WORKGROUP = LANES * COLUMNS;
const GROUP_M = TILE_M;           // rows of a workgroup
const GROUP_N = TILE_N * COLUMNS; // columns of a workgroup, a multiple of SUMS_N
const SUMS_M = 1u;

fn tile_row(group: u32, lane: u32) -> u32 { return group * TILE_M; }
fn tile_column(group: u32, lane: u32) -> u32 { return group * GROUP_N + lane / LANES * TILE_N; }

// Whether the lane has sums once `matmul_tile` has returned; their row and first column.
fn has_sums(lane: u32) -> bool { return lane < TILE_M * (GROUP_N / SUMS_N); }
fn sums_row(group: u32, lane: u32) -> u32 { return group * TILE_M + lane % TILE_M; }
fn sums_column(group: u32, lane: u32) -> u32 { return group * GROUP_N + lane / TILE_M * SUMS_N; }
