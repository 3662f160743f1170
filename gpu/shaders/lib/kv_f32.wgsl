// Four consecutive numbers of a cached key or value, stored as float32.
alias Cached = vec4f;
alias Numbers = array<vec4f, 1>;
const CACHED_VEC4S = 1u;

fn pack_cached(v: vec4f) -> Cached { return v; }
fn unpack_cached(c: Cached) -> Numbers { return Numbers(c); }
