// Sums over the tokens of a strip, for its summary, and the bits of its tokens in a bitmask.
// use: exponentials
const LOWEST = -3.4e38; // finite, so padding weighs exp(LOWEST − top) = 0

// Σ exp(logit) = mass · exp(top), top the largest logit.
struct Sum {
  top: f32,
  mass: f32,
}

fn add(sum: Sum, four: vec4f) -> Sum {
  let top = max(sum.top, max(max(four.x, four.y), max(four.z, four.w)));
  let kept = sum.mass * exponentials(vec4f(sum.top - top)).x;
  return Sum(top, kept + dot(exponentials(four - top), vec4f(1.0)));
}

// `part`, the mass of some of the tokens that were added before and of those `which` of `four`,
// relative to the top of all. `top`: that before `four` was added.
fn add_part(part: f32, top: f32, sum: Sum, four: vec4f, which: vec4<bool>) -> f32 {
  let masses = select(vec4f(), exponentials(four - sum.top), which);
  return part * exponentials(vec4f(top - sum.top)).x + dot(masses, vec4f(1.0));
}

// Bits of the quad's tokens in a word that begins with those of quad / 8 * 8.
fn bits_of(word: u32, quad: u32) -> vec4<bool> {
  return (vec4u(word >> (quad % 8u * 4u)) & vec4u(1u, 2u, 4u, 8u)) != vec4u();
}
