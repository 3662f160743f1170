// Loads of a KV cache stored as f16: four numbers at a time, two to a word.
alias Cached = vec2u;
alias Numbers = array<vec4f, 1>;
const CACHED_VEC4S = 1u;

fn unpack_cached(c: Cached) -> Numbers {
  return Numbers(vec4f(unpack2x16float(c.x), unpack2x16float(c.y)));
}
