// Two consecutive numbers of a cached key or value, stored as float16.
alias Pair = u32;

fn pair_of(v: vec2f) -> Pair { return pack2x16float(v); }
