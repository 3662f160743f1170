// A tile of x · weightᵀ as lib/product.wgsl leaves it, where x was rounded to bytes by
// to_bytes.wgsl: four products of bytes and their sum are one `dot4I8Packed`.
//
// Of a block of 32 with x = a · p, where a is one of two scales, and weight = b · q + c
//
//   Σ x · weight = b · (a₁ · Σ₁ p q + a₂ · Σ₂ p q) + c · Σ x
//
// The sums of bytes are exact; of those of blocks every output is one chain of fused multiply-adds
// (two a block where there are minima), strands added up in order: a row's bits depend on STRANDS
// alone. Norms are part of the scales.
//
// x       [rows] of to_bytes.wgsl
// weight  see lib/columns.wgsl
//
// The shader that uses this says the same as for lib/product.wgsl.
// use: words
// use: columns
// use: weight_bytes
// use: byte_rows
// use: strands
override K: u32; // for those who count operations: blocks are whole here

@group(0) @binding(1) var<storage, read> x: array<Sixteen>;

var<private> x_at: array<u32, TILE_M>; // where in x the rows of the tile begin

// As in lib/product.wgsl.
fn product(first_m: u32, first_n: u32, n_rows: u32, lane: u32) {
  for (var i = 0u; i < TILE_M; i++) {
    x_at[i] = source_row(min(first_m + i, n_rows - 1u)) * BLOCKS * BYTE_LOADS;
  }
  begin_columns(first_n);
  for (var block = lane % STRANDS; block < BLOCKS; block += STRANDS) { add_block(block); }
  if (STRANDS > 1u) {
    var none = array<f32, TILE_M>();
    join_strands(&none, lane);
  }
}

fn add_block(block: u32) {
  var w = array<array<vec4u, 2>, TILE_N>();
  for (var j = 0u; j < TILE_N; j++) { w[j] = bytes_of(packed_at[j], to_block(block)); }
  load_grids(block);
  for (var i = 0u; i < TILE_M; i++) {
    let at = x_at[i] + block * BYTE_LOADS;
    let p = array(words_of(x[at]), words_of(x[at + 1u]));
    let of_x = floats_of(x[at + 2u]);
    for (var j = 0u; j < TILE_N; j++) {
      let s = i * TILE_N + j;
      let parts = vec2f(vec2i(dot_of_fours(p[0], w[j][0]), dot_of_fours(p[1], w[j][1])));
      if (MINIMA) { sums[s] = fma(grid[j].y, of_x.z, sums[s]); }
      sums[s] = fma(grid[j].x, fma(parts.x, of_x.x, parts.y * of_x.y), sums[s]);
    }
  }
}

fn dot_of_fours(a: vec4u, b: vec4u) -> i32 {
  return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y)
       + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}
