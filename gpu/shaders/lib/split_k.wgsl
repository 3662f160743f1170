// Lanes that share a tile of a product, STRANDS of them, each with sums of its own.
// prelude: const TILE_M, const TILE_N, const STRANDS, const COLUMNS
const WORKGROUP = STRANDS * COLUMNS; // COLUMNS tiles side by side
const JOINED = select(TILE_N + 1u, 0u, STRANDS == 1u); // what a lane adds to a row: sums, total

var<private> sums: array<f32, TILE_M * TILE_N>;
var<workgroup> joined: array<f32, max(1u, WORKGROUP * JOINED)>;

// Adds up what the strands have, in their order, a row of the tile at a time; `totals`: of each row
// something else that they have a part of each.
fn join_strands(totals: ptr<function, array<f32, TILE_M>>, lane: u32) {
  let column = lane / STRANDS;
  let strand = lane % STRANDS;
  let stride = COLUMNS * JOINED;
  for (var i = 0u; i < TILE_M; i++) {
    let mine = strand * stride + column * JOINED;
    for (var j = 0u; j < TILE_N; j++) { joined[mine + j] = sums[i * TILE_N + j]; }
    joined[mine + TILE_N] = (*totals)[i];
    workgroupBarrier();
    for (var o = lane; o < stride; o += WORKGROUP) {
      var total = 0.0;
      for (var s = 0u; s < STRANDS; s++) { total += joined[s * stride + o]; }
      joined[o] = total;
    }
    workgroupBarrier();
    for (var j = 0u; j < TILE_N; j++) { sums[i * TILE_N + j] = joined[column * JOINED + j]; }
    (*totals)[i] = joined[column * JOINED + TILE_N];
    workgroupBarrier();
  }
}
