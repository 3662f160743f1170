// Four consecutive numbers of a cached key or value, stored as float32.
alias Cached = vec4f;

fn pack_cached(v: vec4f) -> Cached { return v; }
fn unpack_cached(c: Cached) -> vec4f { return c; }
