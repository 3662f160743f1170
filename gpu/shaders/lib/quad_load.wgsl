// What four queries need that is the same for every lane: each lane loads all of it. See
// attention_round.wgsl.
const PLACES = 4u;
const TOPS = LANES; // lanes that leave a maximum of each query

fn query_of(place: u32, lane: u32) -> u32 { return place; }

// Numbers `d` of queries 4 · four + (0, 1, 2, 3), which begin at `at`.
fn four_queries(at: ptr<function, Places>, four: u32, d: u32) -> array<vec4f, 4> {
  let p = four * PLACES;
  return array<vec4f, 4>(floats_of(q[(*at)[p] + d]), floats_of(q[(*at)[p + 1u] + d]),
                         floats_of(q[(*at)[p + 2u] + d]), floats_of(q[(*at)[p + 3u] + d]));
}

fn four_shares(four: u32, quad: u32, lane: u32) -> array<vec4f, 4> {
  let at = four * 4u * LANES + quad;
  return array<vec4f, 4>(floats_of(shares[at]), floats_of(shares[at + LANES]),
                         floats_of(shares[at + 2u * LANES]), floats_of(shares[at + 3u * LANES]));
}

fn leave_top(i: u32, lane: u32, top: f32) { of_lanes[i * LANES + lane] = top; }

// Called by every lane before four_tops: one lane for each query finds its maximum.
fn gather_tops(lane: u32) {
  for (var i = lane; i < QUERIES; i += LANES) {
    var top = LOWEST;
    for (var l = 0u; l < TOPS; l++) { top = max(top, of_lanes[i * LANES + l]); }
    maxima[i] = top;
  }
  workgroupBarrier();
}

fn four_tops(four: u32, lane: u32) -> vec4f {
  let at = four * 4u;
  return vec4f(maxima[at], maxima[at + 1u], maxima[at + 2u], maxima[at + 3u]);
}
