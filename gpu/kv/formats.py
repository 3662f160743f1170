"""How keys and values are stored in the cache: what each format of it is called, and its bytes.

    f32, f16   a number each
    q8         signed bytes: number = q · top / 127
    q8q4       keys as in q8; values as nibbles: number = q · range / 15 + least
    rotated4   both turned by `gpu.reference.kv.rotation`, then nibbles, a sign and one of eight
               levels made for normal numbers: number = ± level · top / 255

Keys need more than values: some of their numbers are large in every token (Liu et al. 2024,
"KIVI"), and what is lost of them acts through a softmax, while errors of values are averaged. A
rotation spreads what is large over all numbers of a head, so that few bits hold it (Ashkboos et al.
2024, "QuaRot"), and leaves them close to normal, for which the best levels are known (Zandieh et
al. 2025, "TurboQuant").

A head's numbers are cut into blocks, each with a grid of its own (top, or least and range, as
float16): 32 numbers, or as many as divide a head into equal blocks. The 16 tokens of a head in a KV
block lie together: their numbers, then their grids, see shaders/lib/packed_heads.wgsl.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.errors import ModelError

PACK_BLOCK = 32
"""Numbers that share a grid at most."""
CHUNK = 8
"""Numbers that are written and read together."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Of the numbers of a head: `bits` each, and `grid_halves` float16 numbers for each block; 0:
    they are stored as floats."""

    name: str
    bits: int
    grid_halves: int = 0

    @property
    def packed(self) -> bool:
        return self.grid_halves > 0

    def head_bytes(self, head_dim: int) -> int:
        """Of one token's key or value of a head; grids are whole words. Raises ModelError for
        heads that cannot be packed."""
        n_bytes = head_dim * self.bits // 8
        if not self.packed:
            return n_bytes
        n_grids = head_dim // pack_block(head_dim)
        return n_bytes + 4 * -(-n_grids * self.grid_halves // 2)


F32 = Storage("f32", 32)
F16 = Storage("f16", 16)
Q8 = Storage("q8", 8, grid_halves=1)
Q4 = Storage("q4", 4, grid_halves=2)
N4 = Storage("n4", 4, grid_halves=1)
STORAGES = {storage.name: storage for storage in (F32, F16, Q8, Q4, N4)}


@dataclass(frozen=True, slots=True)
class KvFormat:
    """How a cache stores keys and values. `rotated`: turned before, and queries with them."""

    name: str
    keys: Storage
    values: Storage
    rotated: bool = False

    @property
    def packed(self) -> bool:
        """Stored in blocks with grids: nothing less than a whole head can be written."""
        return self.keys.packed


KV_FORMATS = {
    format.name: format
    for format in (
        KvFormat("f32", F32, F32),
        KvFormat("f16", F16, F16),
        KvFormat("q8", Q8, Q8),
        KvFormat("q8q4", Q8, Q4),
        KvFormat("rotated4", N4, N4, rotated=True),
    )
}
KV_DTYPES = tuple(KV_FORMATS)


def kv_format(name: str) -> KvFormat:
    """Raises ModelError for a name that is none."""
    if name not in KV_FORMATS:
        raise ModelError(f"kv_dtype {name!r} is not supported; supported: {', '.join(KV_DTYPES)}")
    return KV_FORMATS[name]


def pack_block(head_dim: int) -> int:
    """Numbers of a head that share a grid: the most, up to `PACK_BLOCK`, that cut the head into
    equal blocks of whole chunks. Raises ModelError for heads without such blocks."""
    if head_dim % CHUNK:
        raise ModelError(
            f"a quantised KV cache needs heads of a multiple of {CHUNK} numbers, but this model's "
            f"have {head_dim}; use kv_dtype f16 or f32"
        )
    return next(n for n in range(PACK_BLOCK, 0, -CHUNK) if head_dim % n == 0)


def rotation_span(head_dim: int) -> int:
    """Numbers that are turned together: the largest power of two that divides `head_dim`."""
    return head_dim & -head_dim
