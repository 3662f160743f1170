// y · scales = RMSNorm of x, split for a matmul of many rows:
//
//   y       x[k] · gain[k]
//   scales  1 / sqrt(mean(x²) + EPS)                  norm(x) = y · scale (Zhang & Sennrich 2019)
//
// lib/matmul_tile.wgsl can fold the norm in, but then every workgroup that walks over the same rows
// repeats it. Squares are added in its order, so that both ways give the same bits: vec4 i of a row
// belongs to chain (i / CHAIN_VEC4S) % CHAINS, and chains are added in order, with QUADS four at a
// time as (a + b) + (c + d).
//
// One workgroup per row, one lane per chain.
//
// x       [rows][8 · BLOCKS] vec4; columns past K are zero
// gain    [8 · BLOCKS] vec4
// y       [rows][8 · BLOCKS] vec4
// scales  [rows]
// use: step
// use: words
// use: fma4
override K: u32;
override BLOCKS: u32;
override EPS: f32;
override CHAINS: u32;
override CHAIN_VEC4S: u32;
override QUADS: bool = false;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<Load16>;
@group(0) @binding(2) var<storage, read> gain: array<Load16>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> scales: array<f32>;

var<workgroup> chain_sums: array<f32, CHAINS>;

@compute @workgroup_size(CHAINS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= step.n_rows) { return; }
  let n_vec4s = 8u * BLOCKS;
  let row_at = row * n_vec4s;
  var chain = 0.0;
  for (var first = lane * CHAIN_VEC4S; first < n_vec4s; first += CHAINS * CHAIN_VEC4S) {
    for (var i = 0u; i < CHAIN_VEC4S; i++) {
      let four = floats_of(x[row_at + first + i]);
      y[row_at + first + i] = four * floats_of(gain[first + i]);
      chain = dot_add(four, four, chain);
    }
  }
  chain_sums[lane] = chain;
  workgroupBarrier();
  if (lane > 0u) { return; }
  var total = 0.0;
  if (QUADS) {
    for (var c = 0u; c < CHAINS; c += 4u) {
      total += (chain_sums[c] + chain_sums[c + 1u]) + (chain_sums[c + 2u] + chain_sums[c + 3u]);
    }
  } else {
    for (var c = 0u; c < CHAINS; c++) { total += chain_sums[c]; }
  }
  scales[row] = 1.0 / sqrt(total / f32(K) + EPS);
}
