// Two consecutive numbers of a cached key or value, stored as float32.
alias Pair = vec2f;

fn pair_of(v: vec2f) -> Pair { return v; }
