// a · b + c as fused multiply-adds in one fixed order, so that all kernels get the same bits.
fn dot_add(a: vec4f, b: vec4f, c: f32) -> f32 {
  return fma(a.x, b.x, fma(a.y, b.y, fma(a.z, b.z, fma(a.w, b.w, c))));
}
