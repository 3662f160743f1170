// Four 4-bit numbers in the low half of a word, the first lowest.
fn nibbles(q: vec4u) -> u32 { return q.x | (q.y << 4u) | (q.z << 8u) | (q.w << 12u); }
fn nibbles_of(word: u32) -> vec4u {
  return (vec4u(word) >> vec4u(0u, 4u, 8u, 12u)) & vec4u(15u);
}
