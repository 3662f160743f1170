// cap · tanh(x / cap) (Gemma 2): hardly changes what is small, and keeps everything within ±cap.
// Written with exp, so that no driver's own tanh overflows.
override CAP: f32 = 0.0; // 0: none

fn soft_capped(x: vec4f) -> vec4f {
  if (CAP == 0.0) { return x; }
  let e = exp(abs(x) * -2.0 / CAP);
  return sign(x) * CAP * (1.0 - e) / (1.0 + e);
}
