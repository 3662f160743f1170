// q4: number = q · range / 15 + minimum. A word holds (minimum, range) of a block.
const Q4 = Packing(4u, 2u);

fn q4_of(x: vec4f, scale_min: vec2f) -> u32 {
  let q = vec4u(clamp(round((x - scale_min.x) * over(15.0, scale_min.y)), vec4f(), vec4f(15.0)));
  return nibbles(q);
}

fn from_q4(word: u32, scale_min: vec2f) -> Numbers {
  let step = vec4f(scale_min.y * (1.0 / 15.0));
  let least = vec4f(scale_min.x);
  return Numbers(fma(vec4f(nibbles_of(word)), step, least),
                 fma(vec4f(nibbles_of(word >> 16u)), step, least));
}
