// q8: number = q · absmax / 127. A word holds the absmax of two blocks.
// use: round_quotient
const Q8 = Packing(8u, 1u);

fn q8_of(x: vec4f, absmax: f32) -> u32 {
  let q = round_quotient(x, 127.0, absmax, over(127.0, absmax));
  return pack4xI8(vec4i(clamp(q, vec4f(-127.0), vec4f(127.0))));
}

fn from_q8(words: vec2u, absmax: f32) -> Numbers {
  let step = absmax * (1.0 / 127.0);
  return Numbers(vec4f(unpack4xI8(words.x)) * step, vec4f(unpack4xI8(words.y)) * step);
}
