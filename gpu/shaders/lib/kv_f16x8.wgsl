// Loads of a KV cache stored as f16: eight numbers at a time, half as many loads as kv_f16. For
// heads of a multiple of eight numbers.
// use: words
alias Cached = Load16;
alias Numbers = array<vec4f, 2>;
const CACHED_VEC4S = 2u;

fn unpack_cached(c: Cached) -> Numbers {
  let words = words_of(c);
  return Numbers(vec4f(unpack2x16float(words.x), unpack2x16float(words.y)),
                 vec4f(unpack2x16float(words.z), unpack2x16float(words.w)));
}
