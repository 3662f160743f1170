// Nibbles: number = q · range / 15 + least. A word is the grid of a block: least, range.
const Q4 = Packing(4u, 2u);

fn q4_of(x: vec4f, grid: vec2f) -> u32 {
  let q = vec4u(clamp(round((x - grid.x) * over(15.0, grid.y)), vec4f(), vec4f(15.0)));
  return nibbles(q);
}

fn from_q4(word: u32, grid: vec2f) -> Numbers {
  let step = vec4f(grid.y * (1.0 / 15.0));
  let least = vec4f(grid.x);
  return Numbers(fma(vec4f(nibbles_of(word)), step, least),
                 fma(vec4f(nibbles_of(word >> 16u)), step, least));
}
