// The rotation of a head (gpu/reference/kv.py, `rotation`), in workgroup memory: signs, then for
// every SPAN numbers Hadamard's matrix over √SPAN by butterflies. Its inverse is the same two steps
// the other way round. Called by every lane; `numbers` may be read by all after it.
// HEAD_DIM and LANES are the shader's.
override SPAN: u32; // a power of two that divides HEAD_DIM
override ONE_OF_SPAN: f32; // 1 / √SPAN

fn sign_of(d: u32) -> f32 {
  let within = d % SPAN;
  let pairs = within & (within >> 1u) & 0x55555555u;
  return select(1.0, -1.0, countOneBits(pairs) % 2u == 1u);
}

fn hadamard(lane: u32) {
  for (var stride = 1u; stride < SPAN; stride *= 2u) {
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

fn rotated(lane: u32) {
  for (var d = lane; d < HEAD_DIM; d += LANES) { numbers[d] *= sign_of(d); }
  hadamard(lane);
  for (var d = lane; d < HEAD_DIM; d += LANES) { numbers[d] *= ONE_OF_SPAN; }
  workgroupBarrier();
}

fn rotated_back(lane: u32) {
  hadamard(lane);
  for (var d = lane; d < HEAD_DIM; d += LANES) { numbers[d] *= sign_of(d) * ONE_OF_SPAN; }
  workgroupBarrier();
}
