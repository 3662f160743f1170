"""The paged KV cache: blocks, those found again by their tokens, the pools that hold them."""
