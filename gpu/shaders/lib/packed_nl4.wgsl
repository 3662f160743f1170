// nl4 (kv_dtype rotated4): number = ± level · absmax / 255, a sign bit above one of eight levels. A
// word holds the absmax of two blocks. gpu/reference/kv.py, `LEVELS`, explains the levels.
const NL4 = Packing(4u, 1u);
const LEVELS_LOW = 0x583d240cu;  // 12, 36, 61, 88, the first lowest
const LEVELS_HIGH = 0xffc19775u; // 117, 151, 193, 255

// Index of the level nearest to 255 · |x| / absmax; 0 if absmax is. By products alone: a division
// may choose another level on another device.
fn nearest_level(x: vec4f, absmax: f32) -> vec4u {
  let size = select(vec4f(), abs(x) * 255.0, absmax > 0.0);
  var n = select(vec4u(), vec4u(1u), size > vec4f(24.0 * absmax));
  n += select(vec4u(), vec4u(1u), size > vec4f(48.5 * absmax));
  n += select(vec4u(), vec4u(1u), size > vec4f(74.5 * absmax));
  n += select(vec4u(), vec4u(1u), size > vec4f(102.5 * absmax));
  n += select(vec4u(), vec4u(1u), size > vec4f(134.0 * absmax));
  n += select(vec4u(), vec4u(1u), size > vec4f(172.0 * absmax));
  return n + select(vec4u(), vec4u(1u), size > vec4f(224.0 * absmax));
}

fn level(n: vec4u) -> vec4f {
  let four = select(vec4u(LEVELS_LOW), vec4u(LEVELS_HIGH), (n & vec4u(4u)) != vec4u());
  return vec4f((four >> ((n & vec4u(3u)) * 8u)) & vec4u(255u));
}

fn nl4_of(x: vec4f, absmax: f32) -> u32 {
  let n = nearest_level(x, absmax);
  return nibbles(n + select(vec4u(), vec4u(8u), x < vec4f()));
}

fn signed_level(code: vec4u) -> vec4f {
  let size = level(code);
  return select(size, -size, code >= vec4u(8u));
}

fn from_nl4(word: u32, absmax: f32) -> Numbers {
  let step = absmax * (1.0 / 255.0);
  return Numbers(signed_level(nibbles_of(word)) * step,
                 signed_level(nibbles_of(word >> 16u)) * step);
}
