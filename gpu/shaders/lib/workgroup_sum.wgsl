// Sum over all lanes of a workgroup, in an order that depends on LANES alone.
override LANES: u32; // a power of two

var<workgroup> lane_sums: array<f32, LANES>;

fn workgroup_sum(mine: f32, lane: u32) -> f32 {
  lane_sums[lane] = mine;
  workgroupBarrier();
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    if (lane < half) { lane_sums[lane] += lane_sums[lane + half]; }
    workgroupBarrier();
  }
  let sum = lane_sums[0];
  workgroupBarrier();
  return sum;
}
