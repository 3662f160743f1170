// Stores and loads of a KV cache as f32: two numbers at a time.
alias Pair = vec2f;

fn pair_of(v: vec2f) -> Pair { return v; }
fn from_pair(p: Pair) -> vec2f { return p; }
