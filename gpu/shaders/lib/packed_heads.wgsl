// Word offsets in a quantised KV cache; gpu/kv/formats.py defines the format. Each (KV block, head)
// holds the numbers of its tokens one after the other, then their scales (and minima).
// prelude: const HEAD_DIM, PACK_BLOCK (numbers that share a scale)
const PACKED_TOKENS = 16u; // tokens of a KV block
const HEAD_BLOCKS = HEAD_DIM / PACK_BLOCK;
const CHUNK = 8u; // numbers of one load

struct Packing {
  bits: u32,        // per number
  scale_halves: u32, // float16 numbers of a block's scale (and minimum)
}

fn data_words(p: Packing) -> u32 { return HEAD_DIM * p.bits / 32u; }
fn scale_words(p: Packing) -> u32 { return (HEAD_BLOCKS * p.scale_halves + 1u) / 2u; }

// First word of the numbers of token `t`, counted over all heads and blocks of the pool.
fn data_at(t: u32, p: Packing) -> u32 {
  let part = t / PACKED_TOKENS * PACKED_TOKENS * (data_words(p) + scale_words(p));
  return part + t % PACKED_TOKENS * data_words(p);
}

// First word of the scales of token `t`.
fn scales_at(t: u32, p: Packing) -> u32 {
  let part = t / PACKED_TOKENS * PACKED_TOKENS * (data_words(p) + scale_words(p));
  return part + PACKED_TOKENS * data_words(p) + t % PACKED_TOKENS * scale_words(p);
}
