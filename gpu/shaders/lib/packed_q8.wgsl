// Signed bytes: number = q · top / 127. The tops of two blocks are in a word.
const Q8 = Packing(8u, 1u);

fn q8_of(x: vec4f, top: f32) -> u32 {
  let q = vec4i(clamp(round(x * over(127.0, top)), vec4f(-127.0), vec4f(127.0)));
  return pack4xI8(q);
}

fn from_q8(words: vec2u, top: f32) -> Numbers {
  let step = top * (1.0 / 127.0);
  return Numbers(vec4f(unpack4xI8(words.x)) * step, vec4f(unpack4xI8(words.y)) * step);
}
