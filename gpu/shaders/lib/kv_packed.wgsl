// Loads of a quantised KV cache: eight numbers at a time. The variants of `cached_keys` and
// `cached_values` decode them.
// use: packed_heads
// use: nibbles
alias Cached = vec2u;
alias Numbers = array<vec4f, 2>;
const CACHED_VEC4S = 2u;
const HEAD_CHUNKS = HEAD_DIM / CHUNK;

fn half_of(word: u32, i: u32) -> f32 { return unpack2x16float(word >> (16u * (i % 2u))).x; }
