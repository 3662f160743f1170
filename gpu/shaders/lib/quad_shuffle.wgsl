// What four queries need that is the same for every lane: each lane of a quad (four lanes in a row,
// whatever the size of a subgroup) loads one part and hands it to the others. See
// attention_round.wgsl.
// needs: subgroups
const PLACES = 1u;
const TOPS = LANES / 4u; // quads that leave a maximum of each query

fn query_of(place: u32, lane: u32) -> u32 { return place * 4u + lane % 4u; }

fn four_queries(at: ptr<function, Places>, four: u32, d: u32) -> array<vec4f, 4> {
  return handed_round(floats_of(q[(*at)[four] + d]));
}

fn four_shares(four: u32, quad: u32, lane: u32) -> array<vec4f, 4> {
  return handed_round(floats_of(shares[query_of(four, lane) * LANES + quad]));
}

fn leave_top(i: u32, lane: u32, top: f32) {
  let pair = max(top, quadSwapX(top));
  let all = max(pair, quadSwapY(pair));
  if (lane % 4u == 0u) { of_lanes[i * LANES + lane / 4u] = all; }
}

fn gather_tops(lane: u32) {}

fn four_tops(four: u32, lane: u32) -> vec4f {
  let at = query_of(four, lane) * LANES;
  var top = LOWEST;
  for (var l = 0u; l < TOPS; l++) { top = max(top, of_lanes[at + l]); }
  return vec4f(quadBroadcast(top, 0u), quadBroadcast(top, 1u),
               quadBroadcast(top, 2u), quadBroadcast(top, 3u));
}

fn handed_round(mine: vec4f) -> array<vec4f, 4> {
  return array<vec4f, 4>(quadBroadcast(mine, 0u), quadBroadcast(mine, 1u),
                         quadBroadcast(mine, 2u), quadBroadcast(mine, 3u));
}
