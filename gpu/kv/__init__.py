"""The paged KV cache: blocks, prefix cache and device pools."""
