// Data of four queries that all lanes need: each lane of a quad (four consecutive lanes, whatever
// the subgroup size) loads one part and shares it. See attention_kv_tile.wgsl.
// needs: subgroups
const QUAD_OFFSETS = 1u;
const LANE_MAXIMA = LANES / 4u; // maxima per query, one per quad

fn query_of(place: u32, lane: u32) -> u32 { return place * 4u + lane % 4u; }

fn quad_queries(at: ptr<function, QueryOffsets>, four: u32, d: u32) -> array<vec4f, 4> {
  return quad_broadcast(floats_of(q[(*at)[four] + d]));
}

fn quad_probs(four: u32, quad: u32, lane: u32) -> array<vec4f, 4> {
  return quad_broadcast(floats_of(probs[query_of(four, lane) * LANES + quad]));
}

fn store_maximum(i: u32, lane: u32, top: f32) {
  let pair = max(top, quadSwapX(top));
  let all = max(pair, quadSwapY(pair));
  if (lane % 4u == 0u) { lane_values[i * LANES + lane / 4u] = all; }
}

fn reduce_maxima(lane: u32) {}

fn quad_maxima(four: u32, lane: u32) -> vec4f {
  let at = query_of(four, lane) * LANES;
  var top = LOWEST;
  for (var l = 0u; l < LANE_MAXIMA; l++) { top = max(top, lane_values[at + l]); }
  return vec4f(quadBroadcast(top, 0u), quadBroadcast(top, 1u),
               quadBroadcast(top, 2u), quadBroadcast(top, 3u));
}

fn quad_broadcast(mine: vec4f) -> array<vec4f, 4> {
  return array<vec4f, 4>(quadBroadcast(mine, 0u), quadBroadcast(mine, 1u),
                         quadBroadcast(mine, 2u), quadBroadcast(mine, 3u));
}
