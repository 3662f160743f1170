"""How shaders that read a quantised cache are specialised."""

from __future__ import annotations

from gpu.kv.formats import KvFormat, pack_block


def packing_prelude(format: KvFormat, head_dim: int) -> dict[str, str]:
    """The constants of shaders/lib/packed_heads.wgsl; none for floats."""
    if not format.packed:
        return {}
    return {"const HEAD_DIM": f"{head_dim}u", "const PACK_BLOCK": f"{pack_block(head_dim)}u"}


def cached_lib(format: KvFormat) -> dict[str, str]:
    """Which files read the keys and values of a quantised cache; none for floats."""
    if not format.packed:
        return {}
    return {
        "kv": "kv_packed",
        "cached_keys": f"cached_keys_{format.keys.name}",
        "cached_values": f"cached_values_{format.values.name}",
    }
