// y[assignment] = act([norm](x) · weightᵀ [+ bias]) with the weight of the assignment's expert
//
//   act    see lib/activation.wgsl
//          GATED: act(even columns) · odd columns     SwiGLU (Shazeer 2020), half as many columns
//
// An assignment is a row and one of its experts: assignment = row · EXPERTS_PER_TOKEN + k. A
// workgroup in y is a tile of assignments of one expert, so that its weights are read once for all
// of them: one assignment, or with PERMUTED a tile of moe_permute.wgsl. Both give the same bits.
//
// The weights of the experts follow each other, N rows each; those of expert e begin at row
// N · (slots[e] − FIRST_SLOT). Slots outside this shard's N_SLOTS belong to other dispatches.
//
// x, weight, gain  see lib/matmul_tile.wgsl; x has one row per X_ASSIGNMENTS assignments
// assignments  [assignments] expert of each, or with PERMUTED assignments sorted by expert
// bias    [assignments][BIAS_STRIDE] (not bound without BIAS)
// tiles   [N_TILES]   see moe_permute.wgsl (not bound without PERMUTED)
// slots   [N_EXPERTS]
// y       [assignments][Y_STRIDE]
// use: step
// use: tile_lanes
// use: matmul_tile
// use: activation
override EXPERTS_PER_TOKEN: u32;
override X_ASSIGNMENTS: u32;
override FIRST_SLOT: u32 = 0u;
override N_SLOTS: u32;
override Y_STRIDE: u32;
override BIAS: bool = false;
override BIAS_STRIDE: u32 = 0u;
override GATED: bool = false;
override PERMUTED: bool;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(4) var<storage, read> assignments: array<u32>;
@group(0) @binding(5) var<storage, read> bias: array<f32>; // optional
@group(0) @binding(6) var<storage, read> tiles: array<vec4u>; // optional
@group(0) @binding(7) var<storage, read> slots: array<u32>;
@group(0) @binding(8) var<storage, read_write> y: array<f32>;

var<private> first_row: u32; // first row of the expert's weight

fn assignment_at(place: u32) -> u32 {
  if (PERMUTED) { return assignments[place]; }
  return place;
}

fn source_row(place: u32) -> u32 { return assignment_at(place) / X_ASSIGNMENTS; }

fn weight_row(column: u32) -> u32 { return first_row + column; }

// (expert, first, end) of a workgroup's tile.
fn tile_of(group: u32, n_assignments: u32) -> vec3u {
  if (PERMUTED) { return tiles[group].xyz; }
  if (group >= n_assignments) { return vec3u(); }
  return vec3u(assignments[group], group, group + 1u);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let tile = tile_of(group.y, step.n_rows * EXPERTS_PER_TOKEN);
  if (tile.y >= tile.z) { return; } // the whole workgroup, so that barriers stay uniform
  let slot = slots[tile.x] - FIRST_SLOT; // slots before the shard wrap around
  if (slot >= N_SLOTS) { return; }
  first_row = slot * N;

  matmul_tile(tile.y + tile_row(0u, lane), tile_column(group.x, lane), tile.z, lane);
  if (!has_sums(lane)) { return; }
  let first_m = tile.y + sums_row(0u, lane);
  let first_n = sums_column(group.x, lane);
  // A copy to index: drivers keep arrays indexed by a variable in memory.
  var found = sums;
  for (var i = 0u; i < SUMS_M; i++) {
    let place = first_m + i;
    if (place >= tile.z) { break; }
    let assignment = assignment_at(place);
    let at = assignment * Y_STRIDE;
    let scale = row_scale(i);
    for (var j = 0u; j < SUMS_N; j++) {
      let column = first_n + j;
      if (column >= N) { break; }
      var value = found[i * SUMS_N + j] * scale;
      let bias_at = assignment * BIAS_STRIDE + column;
      if (BIAS) { value = fma(found[i * SUMS_N + j], scale, bias[bias_at]); }
      if (!GATED) {
        y[at + column] = activated(value);
      } else if (j % 2u == 1u) {
        var gate = found[i * SUMS_N + j - 1u] * scale;
        if (BIAS) { gate = fma(found[i * SUMS_N + j - 1u], scale, bias[bias_at - 1u]); }
        y[at + column / 2u] = activated(gate) * value;
      }
    }
  }
}
