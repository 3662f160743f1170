// cap · tanh(x / cap) (Gemma 2): nearly the identity for small x, and within ±cap. Written with
// exp, because some drivers' tanh overflows.
override CAP: f32 = 0.0; // 0: none

fn soft_cap(x: vec4f) -> vec4f {
  if (CAP == 0.0) { return x; }
  let e = exp(abs(x) * -2.0 / CAP);
  return sign(x) * CAP * (1.0 - e) / (1.0 + e);
}
