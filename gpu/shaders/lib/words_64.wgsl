// Sixteen bytes of a buffer per load, as two 64-bit integers: a software device loads one number at
// a time for each lane, whatever its size.
// needs: int64
alias Load16 = vec2<u64>;
const ELEMENT_WORDS = 2u;

fn words_of(load: Load16) -> vec4u {
  return vec4u(u32(load.x), u32(load.x >> 32u), u32(load.y), u32(load.y >> 32u));
}
fn floats_of(load: Load16) -> vec4f { return bitcast<vec4f>(words_of(load)); }
fn load16_of(floats: vec4f) -> Load16 {
  let words = bitcast<vec4u>(floats);
  return Load16(u64(words.x) | (u64(words.y) << 32u), u64(words.z) | (u64(words.w) << 32u));
}
fn word_in(element: u64, i: u32) -> u32 { return u32(element >> (32u * (i % 2u))); }
