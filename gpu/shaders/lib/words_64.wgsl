// Sixteen bytes of a buffer at a time, in half as many loads: a software device loads one number
// for one lane after the other, whatever its size.
// needs: int64
alias Sixteen = vec2<u64>;
const ELEMENT_WORDS = 2u;

fn words_of(sixteen: Sixteen) -> vec4u {
  return vec4u(u32(sixteen.x), u32(sixteen.x >> 32u), u32(sixteen.y), u32(sixteen.y >> 32u));
}
fn floats_of(sixteen: Sixteen) -> vec4f { return bitcast<vec4f>(words_of(sixteen)); }
fn sixteen_of(floats: vec4f) -> Sixteen {
  let words = bitcast<vec4u>(floats);
  return Sixteen(u64(words.x) | (u64(words.y) << 32u), u64(words.z) | (u64(words.w) << 32u));
}
fn word_in(element: u64, i: u32) -> u32 { return u32(element >> (32u * (i % 2u))); }
