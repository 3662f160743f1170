// Offset of a position in the paged KV cache.
override BLOCK_TOKENS: u32; // tokens of a block
override MAX_BLOCKS: u32;   // entries per slot in the block tables
override N_KV_HEADS: u32;

// Index of the first vec4 of (slot, position, kv_head), for heads of `head_vec4s` vec4s.
// The pool is [block][kv_head][token in block][head_vec4s].
fn cached_at(block: u32, position: u32, kv_head: u32, head_vec4s: u32) -> u32 {
  return ((block * N_KV_HEADS + kv_head) * BLOCK_TOKENS + position % BLOCK_TOKENS) * head_vec4s;
}
