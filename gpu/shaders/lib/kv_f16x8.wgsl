// Eight consecutive numbers of a cached key or value, stored as float16, two to a word: the pools
// of kv_f16 with half as many loads, for heads of a multiple of eight numbers.
// use: words
alias Cached = Sixteen;
alias Numbers = array<vec4f, 2>;
const CACHED_VEC4S = 2u;

fn unpack_cached(c: Cached) -> Numbers {
  let words = words_of(c);
  return Numbers(vec4f(unpack2x16float(words.x), unpack2x16float(words.y)),
                 vec4f(unpack2x16float(words.z), unpack2x16float(words.w)));
}
