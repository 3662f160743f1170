"""Storage formats of keys and values in the cache, and their sizes.

A format (`KvFormat`, the values of `--kv-dtype`) says how keys and values are stored:

    f32, f16   floats
    q8         q8
    q8q4       keys in q8, values in q4
    rotated4   Hadamard transform (`gpu.reference.kv.hadamard_matrix`), then both in nl4

A storage (`KvStorage`) is the code of a number, as in shaders/lib/packed_q8.wgsl, packed_q4.wgsl
and packed_nl4.wgsl; absmax is the largest magnitude of a block:

    q8    signed byte: number = q · absmax / 127
    q4    nibble: number = q · range / 15 + minimum
    nl4   nibble, a sign and one of eight nonlinear levels made for normal numbers:
          number = ± level · absmax / 255; absmax is fitted (`gpu.reference.kv.scales`)

Keys need more bits than values: some of their numbers are large in every token (Liu et al. 2024,
"KIVI"), and their errors act through a softmax, while errors of values are averaged. A Hadamard
transform spreads large numbers over the whole head, so that few bits suffice (Ashkboos et al. 2024,
"QuaRot"), and leaves them close to normal, for which the best levels are known (Zandieh et al.
2025, "TurboQuant").

A head's numbers are cut into blocks, each with its own scale (absmax, or minimum and range, as
float16): 32 numbers, or as many as divide a head into equal blocks. The 16 tokens of a head in a KV
block are contiguous: their numbers, then their scales, see shaders/lib/packed_heads.wgsl.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.errors import ModelError

PACK_BLOCK = 32
"""Most numbers that share a scale."""
CHUNK = 8
"""Numbers that are written and read together."""


@dataclass(frozen=True, slots=True)
class KvStorage:
    """Storage of a head's numbers: `bits` each, and `scale_halves` float16 numbers per block; 0:
    floats without scales."""

    name: str
    bits: int
    scale_halves: int = 0

    @property
    def packed(self) -> bool:
        return self.scale_halves > 0

    def head_bytes(self, head_dim: int) -> int:
        """Return the bytes of one token's key or value of a head; scales take whole words.

        Raises ModelError for heads that cannot be packed.
        """
        n_bytes = head_dim * self.bits // 8
        if not self.packed:
            return n_bytes
        n_scales = head_dim // pack_block(head_dim)
        return n_bytes + 4 * -(-n_scales * self.scale_halves // 2)


F32 = KvStorage("f32", 32)
F16 = KvStorage("f16", 16)
Q8 = KvStorage("q8", 8, scale_halves=1)
Q4 = KvStorage("q4", 4, scale_halves=2)
NL4 = KvStorage("nl4", 4, scale_halves=1)
KV_STORAGES = {storage.name: storage for storage in (F32, F16, Q8, Q4, NL4)}


@dataclass(frozen=True, slots=True)
class KvFormat:
    """Storage of keys and values in a cache. `hadamard`: keys, values and queries are transformed
    first."""

    name: str
    keys: KvStorage
    values: KvStorage
    hadamard: bool = False

    @property
    def packed(self) -> bool:
        """True if stored in blocks with scales, so that only whole heads can be written."""
        return self.keys.packed


KV_FORMATS = {
    format.name: format
    for format in (
        KvFormat("f32", F32, F32),
        KvFormat("f16", F16, F16),
        KvFormat("q8", Q8, Q8),
        KvFormat("q8q4", Q8, Q4),
        KvFormat("rotated4", NL4, NL4, hadamard=True),
    )
}
KV_DTYPES = tuple(KV_FORMATS)


def kv_format(name: str) -> KvFormat:
    """Return a format by name. Raises ModelError for an unknown name."""
    if name not in KV_FORMATS:
        raise ModelError(f"kv_dtype {name!r} is not supported; supported: {', '.join(KV_DTYPES)}")
    return KV_FORMATS[name]


def pack_block(head_dim: int) -> int:
    """Return how many numbers of a head share a scale: the most, up to `PACK_BLOCK`, that cut the
    head into equal blocks of whole chunks.

    Raises ModelError for heads without such blocks.
    """
    if head_dim % CHUNK:
        raise ModelError(
            f"a quantised KV cache needs a head size that is a multiple of {CHUNK}, but this "
            f"model's is {head_dim}; use kv_dtype f16 or f32"
        )
    return next(n for n in range(PACK_BLOCK, 0, -CHUNK) if head_dim % n == 0)


def hadamard_size(head_dim: int) -> int:
    """Return how many numbers are transformed together: the largest power of two that divides
    `head_dim`."""
    return head_dim & -head_dim
