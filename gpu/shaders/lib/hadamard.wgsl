// Hadamard rotation of a head in workgroup memory (gpu/reference/kv.py, `hadamard_matrix`): signs,
// then for every HADAMARD_SIZE numbers the Hadamard matrix over √HADAMARD_SIZE, as butterflies. The
// inverse does both in reverse. All lanes call it. Afterwards lane l may read numbers l, l + LANES
// and so on, and those of other lanes after a barrier. The shader defines HEAD_DIM and LANES.
override HADAMARD_SIZE: u32; // a power of two that divides HEAD_DIM
override HADAMARD_SCALE: f32; // 1 / √HADAMARD_SIZE

fn sign_of(d: u32) -> f32 {
  let within = d % HADAMARD_SIZE;
  let pairs = within & (within >> 1u) & 0x55555555u;
  return select(1.0, -1.0, countOneBits(pairs) % 2u == 1u);
}

fn fwht(lane: u32) {
  for (var stride = 1u; stride < HADAMARD_SIZE; stride *= 2u) {
    workgroupBarrier();
    for (var pair = lane; pair < HEAD_DIM / 2u; pair += LANES) {
      let low = pair / stride * 2u * stride + pair % stride;
      let a = numbers[low];
      let b = numbers[low + stride];
      numbers[low] = a + b;
      numbers[low + stride] = a - b;
    }
  }
  workgroupBarrier();
}

fn forward_hadamard(lane: u32) {
  for (var d = lane; d < HEAD_DIM; d += LANES) { numbers[d] *= sign_of(d); }
  fwht(lane);
  for (var d = lane; d < HEAD_DIM; d += LANES) { numbers[d] *= HADAMARD_SCALE; }
}

fn inverse_hadamard(lane: u32) {
  fwht(lane);
  for (var d = lane; d < HEAD_DIM; d += LANES) { numbers[d] *= sign_of(d) * HADAMARD_SCALE; }
}
