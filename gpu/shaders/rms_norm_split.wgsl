// The two parts of the RMSNorm of x, for a product of many rows: y and the scale of each row
//
//   y       x[k] · gain[k]
//   scales  1 / sqrt(mean(x²) + EPS)                  norm(x) = y · scale (Zhang & Sennrich 2019)
//
// lib/product.wgsl can do both by itself, but then does them again in every workgroup that walks
// over the same rows, one for each few columns of the weight. Squares are added up in its order, so
// that a row's bits are the same either way: four i of a row belongs to chain (i / CHAIN_FOURS) %
// CHAINS, and chains are added in order.
//
// One workgroup for each row, a lane for each chain.
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
override CHAIN_FOURS: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<Sixteen>;
@group(0) @binding(2) var<storage, read> gain: array<Sixteen>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> scales: array<f32>;

var<workgroup> of_chains: array<f32, CHAINS>;

@compute @workgroup_size(CHAINS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= step.n_rows) { return; }
  let n_fours = 8u * BLOCKS;
  let row_at = row * n_fours;
  var chain = 0.0;
  for (var first = lane * CHAIN_FOURS; first < n_fours; first += CHAINS * CHAIN_FOURS) {
    for (var i = first; i < first + CHAIN_FOURS; i++) {
      let four = floats_of(x[row_at + i]);
      y[row_at + i] = four * floats_of(gain[i]);
      chain = dot_add(four, four, chain);
    }
  }
  of_chains[lane] = chain;
  workgroupBarrier();
  if (lane > 0u) { return; }
  var total = 0.0;
  for (var c = 0u; c < CHAINS; c++) { total += of_chains[c]; }
  scales[row] = 1.0 / sqrt(total / f32(K) + EPS);
}
