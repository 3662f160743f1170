// Eight consecutive weights of a row, stored as float32.
struct Weights {
  low: vec4f,
  high: vec4f,
}

fn unpack_low(w: Weights) -> vec4f { return w.low; }
fn unpack_high(w: Weights) -> vec4f { return w.high; }
