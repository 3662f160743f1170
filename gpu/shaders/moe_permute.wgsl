// order = the assignments of a step sorted by expert (stable); tiles = ranges of order, at most
// TILE assignments of one expert each.
//
// An assignment is a row and one of its experts: assignment = row · EXPERTS_PER_TOKEN + k. One
// workgroup; each lane takes every LANES-th expert and walks over all assignments.
//
// expert_ids  [rows][EXPERTS_PER_TOKEN]
// order       [rows · EXPERTS_PER_TOKEN] assignments
// tiles       [N_TILES] (expert, first, end, 0); unused tiles are zeros, an empty range
// use: step
override N_EXPERTS: u32;
override EXPERTS_PER_TOKEN: u32;
override TILE: u32;
override N_TILES: u32;
const LANES = 256u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> expert_ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> order: array<u32>;
@group(0) @binding(3) var<storage, read_write> tiles: array<vec4u>;

var<workgroup> counts: array<u32, N_EXPERTS>; // assignments of each expert

fn tiles_of(n: u32) -> u32 { return (n + TILE - 1u) / TILE; }

// Number of assignments and tiles of the experts before this one.
fn below(expert: u32) -> vec2u {
  var found = vec2u();
  for (var e = 0u; e < expert; e++) { found += vec2u(counts[e], tiles_of(counts[e])); }
  return found;
}

@compute @workgroup_size(LANES)
fn main(@builtin(local_invocation_index) lane: u32) {
  let n_assignments = step.n_rows * EXPERTS_PER_TOKEN;
  for (var e = lane; e < N_EXPERTS; e += LANES) {
    var n = 0u;
    for (var p = 0u; p < n_assignments; p++) { n += u32(expert_ids[p] == e); }
    counts[e] = n;
  }
  workgroupBarrier();

  for (var e = lane; e < N_EXPERTS; e += LANES) {
    if (counts[e] == 0u) { continue; }
    let first = below(e);
    var at = first.x;
    for (var p = 0u; p < n_assignments; p++) {
      if (expert_ids[p] == e) {
        order[at] = p;
        at++;
      }
    }
    for (var t = 0u; t < tiles_of(counts[e]); t++) {
      let start = first.x + t * TILE;
      tiles[first.y + t] = vec4u(e, start, min(start + TILE, at), 0u);
    }
  }
  for (var t = below(N_EXPERTS).y + lane; t < N_TILES; t += LANES) { tiles[t] = vec4u(); }
}
