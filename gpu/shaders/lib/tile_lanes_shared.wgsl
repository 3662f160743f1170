// Place of a lane's part of a workgroup's tile, for lib/matmul_tile_shared.wgsl: 16 × 16 lanes.
// prelude: const TILE_M, const TILE_N
const LANES = 16u;
const GROUP_M = LANES * TILE_M; // rows of a workgroup
const GROUP_N = LANES * TILE_N; // columns of a workgroup
const WORKGROUP = LANES * LANES;
const SUMS_M = TILE_M;            // rows and columns of a lane's sums
const SUMS_N = TILE_N;

fn tile_row(group: u32, lane: u32) -> u32 { return group * GROUP_M + lane / LANES * TILE_M; }
fn tile_column(group: u32, lane: u32) -> u32 { return group * GROUP_N + lane % LANES * TILE_N; }
fn has_sums(lane: u32) -> bool { return true; }
fn sums_row(group: u32, lane: u32) -> u32 { return tile_row(group, lane); }
fn sums_column(group: u32, lane: u32) -> u32 { return tile_column(group, lane); }
