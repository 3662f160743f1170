// Stores and loads of a KV cache as f16: two numbers at a time.
alias Pair = u32;

fn pair_of(v: vec2f) -> Pair { return pack2x16float(v); }
fn from_pair(p: Pair) -> vec2f { return unpack2x16float(p); }
