// Eight consecutive numbers of a quantised key or value at a time; what they are read from, and
// how, is said by the files that stand in for `cached_keys` and `cached_values`.
// use: packed_heads
// use: nibbles
alias Cached = vec2u;
alias Numbers = array<vec4f, 2>;
const CACHED_VEC4S = 2u;
const HEAD_CHUNKS = HEAD_DIM / CHUNK;

fn over(n: f32, top: f32) -> f32 { return select(0.0, n / top, top > 0.0); }
fn half_of(word: u32, i: u32) -> f32 { return unpack2x16float(word >> (16u * (i % 2u))).x; }
