"""Tiling of shaders/attention.wgsl: the work of one workgroup, of few rows (decode) or many
(prefill).

The order of a row's sums depends on `lanes`, `value_groups` and `split`, so these depend on the
shape of the heads and the kind of device alone. The number of queries of a workgroup changes no
bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.config import ModelConfig
from gpu.kv.formats import CHUNK, KV_FORMATS, KvFormat
from gpu.ops.packed import cached_lib, packing_prelude
from gpu.webgpu.device_policy import AttentionLoads, DevicePolicy

WORKGROUP_BYTES = 15 << 10
"""Workgroup memory for partial results; every WebGPU device has 16 KiB."""
QUERY_BYTES = 24
"""Partial results of a lane per query: four weights, an entropy term, a maximum."""
MAX_LANES = 256
"""Most invocations of a workgroup on every WebGPU device."""
TILE_QUERIES = 32
"""Queries of a workgroup of shaders/lib/attention_split_shared.wgsl."""
TILE_SPLIT = 128
"""Keys of a split there."""
TILE_HEAD_DIM = 256
"""Largest heads there: a lane has a vec4 of them for eight queries."""
TILE_VEC4S = 512
"""Vec4s of values in workgroup memory there."""
PIECE_KEYS = 32
"""Keys whose weights are in workgroup memory there."""
MAX_VALUE_GROUPS = 16
"""Most groups of lanes in shaders/lib/attention_split_coalesced.wgsl: their sums are added in
order, so more would wait for each other."""
LOADED_KEYS = 16
"""Most keys of a lane there that are loaded together: those of a KV block."""
LEAST_LOADED_KEYS = 8
"""The same where workgroup memory is scarce."""

_LOADS: dict[AttentionLoads, dict[str, str]] = {
    "own": {"quad": "quad_load"},
    "shuffle": {"quad": "quad_shuffle"},
    "coalesced": {"attention_split": "attention_split_coalesced"},
    "shared": {"attention_split": "attention_split_shared"},
}


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """Tiling for one head shape and KV format.

    head_dim          numbers of a head
    group             query heads per key head
    kv_dtype          format of the KV cache
    rows, heads       queries of a workgroup are rows × heads
    lanes             invocations of a workgroup
    value_groups      groups of lanes, each adding the values of some of the keys
    split             most keys of one split
    split_rows        most rows of a step that is split over workgroups
    chunk             numbers of a key in one load
    loads             how lanes get queries, keys and values:
                      own        each lane loads whole keys
                      shuffle    lanes exchange what they loaded
                      coalesced  lanes share a key, and neighbours load neighbouring bytes
                      shared     a workgroup copies keys and values into workgroup memory
    bytes             most workgroup memory with `coalesced` loads
    """

    head_dim: int
    group: int
    kv_dtype: str
    rows: int
    heads: int
    lanes: int
    value_groups: int
    split: int
    split_rows: int
    chunk: int
    loads: AttentionLoads
    bytes: int

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        kv_dtype: str,
        n_rows: int,
        policy: DevicePolicy,
    ) -> AttentionTiling:
        """Return the tiling of a plan of `n_rows` rows."""
        in_eights = kv_dtype != "f32" and config.head_dim % CHUNK == 0
        chunk = CHUNK if in_eights else 4
        chunks = config.head_dim // chunk
        most = policy.attention_queries
        if policy.attention_loads == "coalesced":
            value_groups = min(MAX_VALUE_GROUPS, _power_of_two(MAX_LANES // chunks))
            lanes = chunks * value_groups
        else:
            lanes = max(policy.row_lanes, 1 << (chunks - 1).bit_length())
            whole_quads = chunks % 4 == 0 or policy.attention_loads == "own"
            value_groups = _power_of_two(lanes // chunks) if whole_quads else 1
            most = min(most, WORKGROUP_BYTES // (QUERY_BYTES * lanes) // 4 * 4)
        loads = policy.attention_loads
        if _shares(config, n_rows, policy):
            loads, most, lanes = "shared", TILE_QUERIES, _shared_lanes(config.head_dim)
        group = config.n_heads // config.n_kv_heads
        heads = _heads(group, most)
        rows = max(1, most // heads) if n_rows > policy.split_rows else 1
        return cls(
            head_dim=config.head_dim,
            group=group,
            kv_dtype=kv_dtype,
            rows=rows,
            heads=heads,
            lanes=lanes,
            value_groups=value_groups,
            split=policy.kv_split_size,
            split_rows=policy.split_rows,
            chunk=chunk,
            loads=loads,
            bytes=policy.attention_bytes,
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
            "VALUE_GROUPS": self.value_groups,
            "SPLIT_ROWS": self.split_rows,
            "QUAD_SIZE": min(4, self.rows * self.heads),
        }
        if self.loads == "shared":
            fit = TILE_VEC4S // sizes["HEAD_VEC4S"]
            sizes["VALUE_KEYS"] = min(PIECE_KEYS, _power_of_two(fit))
        if self.loads == "coalesced":
            sizes |= self._rounds
        packing = packing_prelude(self.format, self.head_dim)
        return {f"const {name}": f"{size}u" for name, size in sizes.items()} | packing

    @property
    def _rounds(self) -> dict[str, int]:
        """How much of a split goes through workgroup memory at a time: all of it if there is room
        for partial scores and values next to what the whole split needs."""
        queries = self.rows * self.heads
        whole = queries * (4 * self.split + self.split + 8 * self.value_groups + 24)
        room = (self.bytes - whole) // (16 * self.lanes)  # vec4s of each lane
        loaded = min(LOADED_KEYS, self.split // self.value_groups)
        if loaded > 4 * room:
            loaded = LEAST_LOADED_KEYS
        return {
            "LOADED_KEYS": loaded,
            "SCORED_QUERIES": _divisor(queries, room // (loaded // 4)),
            "ADDED_QUERIES": _divisor(queries, room // (self.chunk // 4)),
        }

    @property
    def lib(self) -> dict[str, str]:
        """Library files that load keys and values and share them between lanes."""
        return {
            "kv": "kv_f16x8" if self.chunk == CHUNK else f"kv_{self.kv_dtype}",
            **_LOADS[self.loads],
            **cached_lib(self.format),
        }

    def n_splits(self, n_keys: int) -> int:
        return -(-n_keys // self.split)


def _heads(group: int, most: int) -> int:
    """Return the heads of a workgroup: of a group of more than `most`, an even share."""
    return -(-group // -(-group // most))


def _shares(config: ModelConfig, n_rows: int, policy: DevicePolicy) -> bool:
    """Return whether workgroups copy keys and values into workgroup memory."""
    least = policy.shared_attention_workgroups
    fits = config.head_dim <= TILE_HEAD_DIM and policy.kv_split_size == TILE_SPLIT
    if least is None or n_rows <= policy.split_rows or not fits:
        return False
    group = config.n_heads // config.n_kv_heads
    heads = _heads(group, TILE_QUERIES)
    row_tiles = -(-n_rows // (TILE_QUERIES // heads))
    return config.n_kv_heads * -(-group // heads) * row_tiles >= least


def _shared_lanes(head_dim: int) -> int:
    """Return the lanes that add the values of eight queries each: 64, or whole waves of at least
    128."""
    lanes = TILE_QUERIES // 8 * (head_dim // 4)
    return 64 if lanes <= 64 else max(128, -(-lanes // 32) * 32)


def _divisor(n: int, most: int) -> int:
    """Return the largest divisor of `n` that is at most `most`."""
    return next(divisor for divisor in range(min(n, most), 0, -1) if n % divisor == 0)


def _power_of_two(n: int) -> int:
    """Return the largest power of two that is at most `n`."""
    return 1 << (n.bit_length() - 1)
