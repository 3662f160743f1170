// Split k: SPLIT_K lanes (1 or a multiple of 4) share a matmul tile, each with sums over a part of
// k. The parts of four lanes are added as (a + b) + (c + d), and these sums in order.
// prelude: const TILE_M, const TILE_N, const SPLIT_K, const COLUMNS
const WORKGROUP = SPLIT_K * COLUMNS; // COLUMNS tiles in N
const PARTIAL_STRIDE = select(TILE_N, 0u, SPLIT_K == 1u); // per lane: sums of a row

var<private> sums: array<f32, TILE_M * TILE_N>;
var<workgroup> partial_sums: array<f32, max(1u, WORKGROUP * PARTIAL_STRIDE)>;

// Adds the parts in order, one row of the tile at a time.
fn reduce_split_k(lane: u32) {
  let column = lane / SPLIT_K;
  let k_part = lane % SPLIT_K;
  let stride = COLUMNS * PARTIAL_STRIDE;
  for (var i = 0u; i < TILE_M; i++) { // unroll
    let mine = k_part * stride + column * PARTIAL_STRIDE;
    for (var j = 0u; j < TILE_N; j++) { partial_sums[mine + j] = sums[i * TILE_N + j]; } // unroll
    workgroupBarrier();
    for (var o = lane; o < stride; o += WORKGROUP) {
      var total = 0.0;
      for (var s = o; s < SPLIT_K * stride; s += 4u * stride) {
        total += (partial_sums[s] + partial_sums[s + stride])
               + (partial_sums[s + 2u * stride] + partial_sums[s + 3u * stride]);
      }
      partial_sums[o] = total;
    }
    workgroupBarrier();
    for (var j = 0u; j < TILE_N; j++) { // unroll
      sums[i * TILE_N + j] = partial_sums[column * PARTIAL_STRIDE + j];
    }
    workgroupBarrier();
  }
}
