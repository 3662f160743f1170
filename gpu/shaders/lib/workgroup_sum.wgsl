// What all lanes of a workgroup have, added up in an order that depends on LANES alone.
override LANES: u32; // a power of two

var<workgroup> of_lanes: array<f32, LANES>;

fn sum_of_lanes(mine: f32, lane: u32) -> f32 {
  of_lanes[lane] = mine;
  workgroupBarrier();
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    if (lane < half) { of_lanes[lane] += of_lanes[lane + half]; }
    workgroupBarrier();
  }
  let sum = of_lanes[0];
  workgroupBarrier();
  return sum;
}
