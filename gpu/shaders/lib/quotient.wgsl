// a / b, the same on every device but for rare last bits: WGSL allows a division 2.5 ULP, and the
// remainder, which is exact, corrects it.
fn quotient(a: f32, b: f32) -> f32 {
  let near = a / b;
  return near + fma(-near, b, a) / b;
}
