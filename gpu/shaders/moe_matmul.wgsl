// y[pair] = act([norm](x) · weightᵀ [+ bias]) with the weight of the pair's own expert
//
//   act    see lib/activation.wgsl
//          GATED: act(even columns) · odd columns     SwiGLU (Shazeer 2020), half as many columns
//
// A pair is a row and one of the experts it was given to: pair = row · PER_TOKEN + k. Workgroups in
// y are tiles of pairs that share an expert, so that its weights are read once for all of them: of
// one pair each, or GROUPED, as group_pairs.wgsl cut them. Either way a pair's bits are the same.
//
// The weights of experts lie one below the other, N rows each, and `slots` says where: those of
// expert e begin at row N · (slots[e] − FIRST_SLOT). What lies outside of this shard's N_SLOTS is
// left to the dispatches of others.
//
// x, weight, gain  see lib/product.wgsl; x has a row for each X_PAIRS pairs
// pairs   [pairs] the expert of each, or, GROUPED, pairs in the order of group_pairs.wgsl
// bias    [pairs][BIAS_STRIDE]: of each pair its own (any buffer when not BIAS)
// tiles   [N_TILES]   see group_pairs.wgsl (any buffer when not GROUPED)
// slots   [N_EXPERTS]
// y       [pairs][Y_STRIDE]
// use: step
// use: product
// use: activation
override PER_TOKEN: u32;
override X_PAIRS: u32;
override FIRST_SLOT: u32 = 0u;
override N_SLOTS: u32;
override Y_STRIDE: u32;
override BIAS: bool = false;
override BIAS_STRIDE: u32 = 0u;
override GATED: bool = false;
override GROUPED: bool;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(4) var<storage, read> pairs: array<u32>;
@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(6) var<storage, read> tiles: array<vec4u>;
@group(0) @binding(7) var<storage, read> slots: array<u32>;
@group(0) @binding(8) var<storage, read_write> y: array<f32>;

var<private> first_row: u32; // of the expert's weight

fn pair_at(place: u32) -> u32 {
  if (GROUPED) { return pairs[place]; }
  return place;
}

fn source_row(place: u32) -> u32 { return pair_at(place) / X_PAIRS; }

fn weight_row(column: u32) -> u32 { return first_row + column; }

// Expert, first pair and end of a workgroup's tile.
fn tile_of(group: u32, n_pairs: u32) -> vec3u {
  if (GROUPED) { return tiles[group].xyz; }
  if (group >= n_pairs) { return vec3u(); }
  return vec3u(pairs[group], group, group + 1u);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let tile = tile_of(group.y, step.n_rows * PER_TOKEN);
  if (tile.y >= tile.z) { return; } // the whole workgroup: the others trade and meet at barriers
  let slot = slots[tile.x] - FIRST_SLOT; // those before the shard wrap round
  if (slot >= N_SLOTS) { return; }
  first_row = slot * N;

  let first_n = (group.x * COLUMNS + lane / STRANDS) * TILE_N;
  product(tile.y, first_n, tile.z, lane);
  if (lane % STRANDS != 0u) { return; }
  // A copy for the loop to pick from: drivers keep what is indexed by a variable in memory.
  var found = sums;
  for (var i = 0u; i < TILE_M; i++) {
    if (tile.y + i >= tile.z) { break; }
    let pair = pair_at(tile.y + i);
    let at = pair * Y_STRIDE;
    for (var j = 0u; j < TILE_N; j++) {
      let column = first_n + j;
      if (column >= N) { break; }
      var value = found[i * TILE_N + j];
      if (BIAS) { value += bias[pair * BIAS_STRIDE + column]; }
      if (!GATED) {
        y[at + column] = activated(value);
      } else if (j % 2u == 1u) {
        var gate = found[i * TILE_N + j - 1u];
        if (BIAS) { gate += bias[pair * BIAS_STRIDE + column - 1u]; }
        y[at + column / 2u] = activated(gate) * value;
      }
    }
  }
}
