"""Specialisation of shaders that read a quantised KV cache."""

from __future__ import annotations

from gpu.kv.formats import KvFormat, pack_block


def packing_prelude(format: KvFormat, head_dim: int) -> dict[str, str]:
    """Return the constants of shaders/lib/packed_heads.wgsl; {} for f32 and f16."""
    if not format.packed:
        return {}
    return {"const HEAD_DIM": f"{head_dim}u", "const PACK_BLOCK": f"{pack_block(head_dim)}u"}


def cached_lib(format: KvFormat) -> dict[str, str]:
    """Return the library files that read quantised keys and values; {} for f32 and f16."""
    if not format.packed:
        return {}
    return {
        "kv": "kv_packed",
        "cached_keys": f"cached_keys_{format.keys.name}",
        "cached_values": f"cached_values_{format.values.name}",
    }
