// Eight consecutive weights of a row, stored as float16, two to a word, the first in the low half.
alias Weights = vec4u;

fn unpack_low(w: Weights) -> vec4f { return vec4f(unpack2x16float(w.x), unpack2x16float(w.y)); }
fn unpack_high(w: Weights) -> vec4f { return vec4f(unpack2x16float(w.z), unpack2x16float(w.w)); }
