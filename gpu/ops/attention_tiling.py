"""How attention is cut: what one workgroup of shaders/attention.wgsl serves.

The order of a row's sums depends on `lanes`, `parts` and `split`, so those follow from the shape of
the heads and the kind of device alone. How many queries share a workgroup changes no bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.config import ModelConfig
from gpu.kv.formats import CHUNK, KV_FORMATS, KvFormat
from gpu.ops.packed import cached_lib, packing_prelude

FEW_ROWS = 8
"""Rows of a step that is taken for decoding: each row's splits are workgroups of their own. Larger
steps have workgroups enough, and would need much memory for what splits leave."""

WORKGROUP_BYTES = 15 << 10
"""Workgroup memory for what lanes leave; every WebGPU device has 16 KiB."""
QUERY_BYTES = 24
"""What each lane leaves for each query: four shares, a term of the entropy, a maximum."""


@dataclass(frozen=True, slots=True)
class AttentionCut:
    """For query heads of `head_dim`, `group` of them to a key head, and a cache of `kv_dtype`:
    `rows` × `heads` queries of a workgroup of `lanes`; values of a key are added by `parts`
    groups of lanes; `split` keys are walked at most before the sums are set down. `chunk`:
    numbers of a key that one load brings. `trade`: lanes hand each other what they loaded."""

    head_dim: int
    group: int
    kv_dtype: str
    rows: int
    heads: int
    lanes: int
    parts: int
    split: int
    chunk: int
    trade: bool

    @classmethod
    def of(
        cls, config: ModelConfig, kv_dtype: str, n_rows: int, *, software: bool, trade: bool
    ) -> AttentionCut:
        """For a plan of `n_rows` rows. `trade` asks for the feature "subgroup"."""
        in_eights = kv_dtype != "f32" and config.head_dim % CHUNK == 0
        chunk = CHUNK if in_eights else 4
        chunks = config.head_dim // chunk
        lanes = max(8 if software else 64, 1 << (chunks - 1).bit_length())
        whole_quads = chunks % 4 == 0 or not trade
        parts = 1 << ((lanes // chunks).bit_length() - 1) if whole_quads else 1
        most = min(12 if software else 8, WORKGROUP_BYTES // (QUERY_BYTES * lanes) // 4 * 4)
        group = config.n_heads // config.n_kv_heads
        heads = -(-group // -(-group // most))
        rows = max(1, most // heads) if n_rows > FEW_ROWS else 1
        return cls(
            head_dim=config.head_dim,
            group=group,
            kv_dtype=kv_dtype,
            rows=rows,
            heads=heads,
            lanes=lanes,
            parts=parts,
            split=split_of(software),
            chunk=chunk,
            trade=trade,
        )

    @property
    def format(self) -> KvFormat:
        return KV_FORMATS[self.kv_dtype]

    @property
    def prelude(self) -> dict[str, str]:
        sizes = {
            "HEAD_VEC4S": self.head_dim // 4,
            "GROUP": self.group,
            "HEADS": self.heads,
            "ROWS": self.rows,
            "LANES": self.lanes,
            "PARTS": self.parts,
            "FEW_ROWS": FEW_ROWS,
        }
        packing = packing_prelude(self.format, self.head_dim)
        return {f"const {name}": f"{size}u" for name, size in sizes.items()} | packing

    @property
    def lib(self) -> dict[str, str]:
        """How keys are loaded, and how lanes come by four of them."""
        return {
            "kv": "kv_f16x8" if self.chunk == CHUNK else f"kv_{self.kv_dtype}",
            "four": "four_lanes" if self.trade else "four_loads",
            **cached_lib(self.format),
        }

    def n_splits(self, n_keys: int) -> int:
        return -(-n_keys // self.split)


def split_of(software: bool) -> int:
    """Keys of a split: short ones keep a GPU's many cores busy, on a software device they only cost
    dispatches."""
    return 512 if software else 256
