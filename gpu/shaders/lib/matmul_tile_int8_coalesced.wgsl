// A tile of x · weightᵀ like lib/matmul_tile_int8.wgsl, for few rows on a GPU: neighbouring lanes
// load neighbouring 16 bytes. Two lanes share a block, a half each, and SPLIT_K / 2 of these pairs
// share the blocks of k. A lane unpacks its weights once for all rows of the tile.
//
// For half h of a block with x = a · p and weight = b · q + c, a lane adds
//
//   c · Σ x of the whole block, if the weights have mins and h = 0; then (b · Σ p q) · a
//
// Every output is one chain of fused multiply-adds in each lane, and lib/split_k.wgsl adds the
// chains. lib/matmul_tile_int8_shared.wgsl adds in the same order.
//
// x, weight  see lib/matmul_tile_int8.wgsl
// use: words
// use: columns
// use: int8_half
// use: quantized_rows
// use: scale_rows_q8
// use: split_k
override K: u32; // read by the cost formula only: blocks are whole here

@group(0) @binding(1) var<storage, read> x: array<Load16>;

var<private> x_at: array<u32, TILE_M>; // offsets of the tile's rows in x

// Same contract as in lib/matmul_tile.wgsl.
fn matmul_tile(first_m: u32, first_n: u32, n_rows: u32, lane: u32) {
  for (var i = 0u; i < TILE_M; i++) { // unroll
    x_at[i] = source_row(min(first_m + i, n_rows - 1u)) * BLOCKS * Q8_BLOCK_LOADS;
  }
  begin_columns(first_n);
  for (var block = lane % SPLIT_K / 2u; block < BLOCKS; block += SPLIT_K / 2u) {
    add_half(block, lane % 2u);
  }
  reduce_split_k(lane);
}

fn add_half(block: u32, half: u32) {
  load_scales(block);
  var q = array<vec4u, TILE_N>();
  for (var j = 0u; j < TILE_N; j++) { // unroll
    q[j] = int8_half(packed_at[j], block_offset(block), half);
  }
  for (var i = 0u; i < TILE_M; i++) { // unroll
    let at = x_at[i] + block * Q8_BLOCK_LOADS;
    let p = words_of(x[at + half]);
    let of_x = floats_of(x[at + 2u]);
    if (HAS_MINS && half == 0u) {
      for (var j = 0u; j < TILE_N; j++) { // unroll
        let s = i * TILE_N + j;
        sums[s] = fma(scale_min[j].y, of_x.z, sums[s]);
      }
    }
    let x_scale = select(of_x.x, of_x.y, half == 1u);
    for (var j = 0u; j < TILE_N; j++) { // unroll
      let s = i * TILE_N + j;
      sums[s] = add_int8_half(p, q[j], scale_min[j].x, x_scale, sums[s]);
    }
  }
}
