// Four consecutive numbers of a cached key or value, stored as float32.
// use: words
alias Cached = Sixteen;
alias Numbers = array<vec4f, 1>;
const CACHED_VEC4S = 1u;

fn unpack_cached(c: Cached) -> Numbers { return Numbers(floats_of(c)); }
