// q4: number = q · range / 15 + minimum. A word holds (minimum, range) of a block.
// use: round_quotient
const Q4 = Packing(4u, 2u);

fn q4_of(x: vec4f, scale_min: vec2f) -> u32 {
  let range = scale_min.y;
  let q = round_quotient(x - scale_min.x, 15.0, range, over(15.0, range));
  return nibbles(vec4u(clamp(q, vec4f(), vec4f(15.0))));
}

fn from_q4(word: u32, scale_min: vec2f) -> Numbers {
  let step = vec4f(scale_min.y * (1.0 / 15.0));
  let least = vec4f(scale_min.x);
  return Numbers(fma(vec4f(nibbles_of(word)), step, least),
                 fma(vec4f(nibbles_of(word >> 16u)), step, least));
}
