// Loads of a KV cache stored as f32: four numbers at a time.
// use: words
alias Cached = Load16;
alias Numbers = array<vec4f, 1>;
const CACHED_VEC4S = 1u;

fn unpack_cached(c: Cached) -> Numbers { return Numbers(floats_of(c)); }
