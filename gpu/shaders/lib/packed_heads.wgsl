// Where the words of a quantised key or value lie; gpu/kv/formats.py says what they mean. For every
// KV block and head: the numbers of its tokens one behind the other, then their grids.
// prelude: const HEAD_DIM, PACK_BLOCK (numbers that share a grid)
const PACKED_TOKENS = 16u; // of a KV block
const GRIDS = HEAD_DIM / PACK_BLOCK;
const CHUNK = 8u; // numbers that are read together

struct Packing {
  bits: u32,        // of a number
  grid_halves: u32, // float16 numbers of a block's grid
}

fn data_words(p: Packing) -> u32 { return HEAD_DIM * p.bits / 32u; }
fn grid_words(p: Packing) -> u32 { return (GRIDS * p.grid_halves + 1u) / 2u; }

// The first word of token `t`, counted over all heads and blocks of the pool.
fn data_at(t: u32, p: Packing) -> u32 {
  let part = t / PACKED_TOKENS * PACKED_TOKENS * (data_words(p) + grid_words(p));
  return part + t % PACKED_TOKENS * data_words(p);
}

// The first word of its grids.
fn grids_at(t: u32, p: Packing) -> u32 {
  let part = t / PACKED_TOKENS * PACKED_TOKENS * (data_words(p) + grid_words(p));
  return part + PACKED_TOKENS * data_words(p) + t % PACKED_TOKENS * grid_words(p);
}
