// Data of four queries that all lanes need: each lane loads all of it. See attention_kv_tile.wgsl.
const QUAD_OFFSETS = 4u;
const LANE_MAXIMA = LANES; // maxima per query, one per lane

fn query_of(place: u32, lane: u32) -> u32 { return place; }

// Vec4 `d` of queries 4 · four + (0, 1, 2, 3), whose offsets are in `at`.
fn quad_queries(at: ptr<function, QueryOffsets>, four: u32, d: u32) -> array<vec4f, 4> {
  let p = four * QUAD_OFFSETS;
  return array<vec4f, 4>(floats_of(q[(*at)[p] + d]), floats_of(q[(*at)[p + 1u] + d]),
                         floats_of(q[(*at)[p + 2u] + d]), floats_of(q[(*at)[p + 3u] + d]));
}

fn quad_probs(four: u32, quad: u32, lane: u32) -> array<vec4f, 4> {
  let at = four * 4u * LANES + quad;
  return array<vec4f, 4>(floats_of(probs[at]), floats_of(probs[at + LANES]),
                         floats_of(probs[at + 2u * LANES]), floats_of(probs[at + 3u * LANES]));
}

fn store_maximum(i: u32, lane: u32, top: f32) { lane_values[i * LANES + lane] = top; }

// All lanes call this before quad_maxima; one lane per query reduces its maxima.
fn reduce_maxima(lane: u32) {
  for (var i = lane; i < QUERIES; i += LANES) {
    var top = LOWEST;
    for (var l = 0u; l < LANE_MAXIMA; l++) { top = max(top, lane_values[i * LANES + l]); }
    maxima[i] = top;
  }
  workgroupBarrier();
}

fn quad_maxima(four: u32, lane: u32) -> vec4f {
  let at = four * 4u;
  return vec4f(maxima[at], maxima[at + 1u], maxima[at + 2u], maxima[at + 3u]);
}
