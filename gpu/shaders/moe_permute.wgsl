// Puts the pairs of a step in the order of their experts, and cuts those of each into tiles.
//
// A pair is a row and one of the experts it was given to: pair = row · PER_TOKEN + k. In the one
// workgroup a lane has an expert at a time and walks over all pairs; those of one stay in order.
//
// chosen  [rows][PER_TOKEN] ids
// order   [rows · PER_TOKEN] pairs
// tiles   [N_TILES] (expert, first, end, 0): of `order`, at most TILE of one expert; those past the
//         last hold zeros, which is no pair
// use: step
override N_EXPERTS: u32;
override PER_TOKEN: u32;
override TILE: u32;
override N_TILES: u32;
const LANES = 256u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> chosen: array<u32>;
@group(0) @binding(2) var<storage, read_write> order: array<u32>;
@group(0) @binding(3) var<storage, read_write> tiles: array<vec4u>;

var<workgroup> counts: array<u32, N_EXPERTS>; // pairs of each expert

fn tiles_of(n: u32) -> u32 { return (n + TILE - 1u) / TILE; }

// Pairs and tiles of the experts below this one.
fn below(expert: u32) -> vec2u {
  var found = vec2u();
  for (var e = 0u; e < expert; e++) { found += vec2u(counts[e], tiles_of(counts[e])); }
  return found;
}

@compute @workgroup_size(LANES)
fn main(@builtin(local_invocation_index) lane: u32) {
  let n_pairs = step.n_rows * PER_TOKEN;
  for (var e = lane; e < N_EXPERTS; e += LANES) {
    var n = 0u;
    for (var p = 0u; p < n_pairs; p++) { n += u32(chosen[p] == e); }
    counts[e] = n;
  }
  workgroupBarrier();

  for (var e = lane; e < N_EXPERTS; e += LANES) {
    if (counts[e] == 0u) { continue; }
    let first = below(e);
    var at = first.x;
    for (var p = 0u; p < n_pairs; p++) {
      if (chosen[p] == e) {
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
