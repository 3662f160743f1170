// a · b + c in one fixed order of fused multiply-adds, so that every kernel that uses it gives
// the same bits for the same numbers.
fn dot_add(a: vec4f, b: vec4f, c: f32) -> f32 {
  return fma(a.x, b.x, fma(a.y, b.y, fma(a.z, b.z, fma(a.w, b.w, c))));
}
