// A tile of x · weightᵀ like lib/matmul_tile.wgsl, for rows x that quantize_activations.wgsl
// rounded to int8: four multiplications and their sum are one `dot4I8Packed`.
//
// For a block of 32 with x = a · p, where a is one of two scales, and weight = b · q + c:
//
//   Σ x · weight = b · (a₁ · Σ₁ p q + a₂ · Σ₂ p q) + c · Σ x
//
// The integer sums are exact. Over blocks every output is one chain of fused multiply-adds (two per
// block with mins), parts of split k added in order: a row's bits depend on SPLIT_K alone. The norm
// is in the scales.
//
// x       [rows] as quantize_activations.wgsl writes them
// weight  see lib/columns.wgsl
//
// The shader that uses this defines the same functions as for lib/matmul_tile.wgsl.
// use: words
// use: columns
// use: weight_int8
// use: quantized_rows
// use: scale_rows_q8
// use: split_k
override K: u32; // read by the cost formula only: blocks are whole here

@group(0) @binding(1) var<storage, read> x: array<Load16>;

var<private> x_at: array<u32, TILE_M>; // offsets of the tile's rows in x

// Same contract as in lib/matmul_tile.wgsl.
fn matmul_tile(first_m: u32, first_n: u32, n_rows: u32, lane: u32) {
  for (var i = 0u; i < TILE_M; i++) {
    x_at[i] = source_row(min(first_m + i, n_rows - 1u)) * BLOCKS * Q8_BLOCK_LOADS;
  }
  begin_columns(first_n);
  for (var block = lane % SPLIT_K; block < BLOCKS; block += SPLIT_K) { add_block(block); }
  if (SPLIT_K > 1u) { reduce_split_k(lane); }
}

fn add_block(block: u32) {
  var w = array<array<vec4u, 2>, TILE_N>();
  for (var j = 0u; j < TILE_N; j++) { w[j] = int8_of(packed_at[j], block_offset(block)); }
  load_scales(block);
  for (var i = 0u; i < TILE_M; i++) {
    let at = x_at[i] + block * Q8_BLOCK_LOADS;
    let p = array(words_of(x[at]), words_of(x[at + 1u]));
    let of_x = floats_of(x[at + 2u]);
    for (var j = 0u; j < TILE_N; j++) {
      let s = i * TILE_N + j;
      let parts = vec2f(vec2i(dot_int8x16(p[0], w[j][0]), dot_int8x16(p[1], w[j][1])));
      if (HAS_MINS) { sums[s] = fma(scale_min[j].y, of_x.z, sums[s]); }
      sums[s] = fma(scale_min[j].x, fma(parts.x, of_x.x, parts.y * of_x.y), sums[s]);
    }
  }
}

fn dot_int8x16(a: vec4u, b: vec4u) -> i32 {
  return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y)
       + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}
