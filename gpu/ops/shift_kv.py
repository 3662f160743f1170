"""Shift of cached tokens to other positions (llama.cpp: K-shift): their keys are rotated by the
difference, their values copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig
from gpu.kv.copies import TokenMove
from gpu.kv.pools import KvPools
from gpu.ops.batch import paging
from gpu.ops.norms import rotary_dim_of
from gpu.ops.packed import packing_prelude
from gpu.ops.quantize_kv import STORAGE_CODES, hadamard_constants, lanes_of_head
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.plan import Recorder

MOVE_WORDS = 4


@dataclass(frozen=True, slots=True)
class LayerRope:
    """Rotary positions of a layer: cosines and sines (context, rotary_dim / 2, 2), and the factor
    they were multiplied by, `RopeConfig.attention_factor`."""

    cos_sin: Tensor
    factor: float


def make_moves(memory: Memory, n: int) -> Tensor:
    """Return a buffer for the largest batch of `n` moves: (1 + n, MOVE_WORDS) u32."""
    return memory.zeros("kv.moves", (1 + n, MOVE_WORDS), "u32")


def pack_moves(moves: Sequence[TokenMove]) -> npt.NDArray[np.uint32]:
    """Return what the shaders read: (1 + n, MOVE_WORDS), the count and then the moves."""
    packed = np.zeros((1 + len(moves), MOVE_WORDS), np.int32)
    packed[0, 0] = len(moves)
    packed[1:, :3] = np.array(moves, np.int32).reshape(-1, 3)
    return packed.view(np.uint32)


def shift_kv(
    rec: Recorder,
    label: str,
    config: ModelConfig,
    moves: Tensor,
    rope: LayerRope | None,
    pools: KvPools,
    layer: int,
) -> None:
    """Carry out `moves` in the cache of `layer`, which is quantised by a shader of its own. `rope`:
    None for a layer without positions, whose keys are copied."""
    if pools.format.packed:
        shift_quantized_kv(rec, label, config, moves, rope, pools, layer)
        return
    pairs = config.head_dim // 2
    rec.dispatch(
        label,
        "shift_kv",
        _tensors(moves, rope, pools, layer),
        (2 * config.n_kv_heads, moves.shape[0] - 1, 1),
        {
            "PAIRS": pairs,
            "HALF": _rotary_dim(config, rope, label) // 4,
            "LANES": min(rec.device.policy.row_lanes, pairs),
            **_constants(config, rope, pools),
        },
        lib={"kv_pair": f"kv_pair_{pools.dtype}"},
    )


def shift_quantized_kv(
    rec: Recorder,
    label: str,
    config: ModelConfig,
    moves: Tensor,
    rope: LayerRope | None,
    pools: KvPools,
    layer: int,
) -> None:
    """Do `shift_kv` in a quantised cache: rotated keys are quantised again."""
    rec.dispatch(
        label,
        "shift_quantized_kv",
        _tensors(moves, rope, pools, layer),
        (2 * config.n_kv_heads, moves.shape[0] - 1, 1),
        {
            "HALF": _rotary_dim(config, rope, label) // 2,
            "K_STORAGE": STORAGE_CODES[pools.format.keys.name],
            "V_STORAGE": STORAGE_CODES[pools.format.values.name],
            "HADAMARD": pools.format.hadamard,
            "LANES": lanes_of_head(rec.device.policy, config.head_dim),
            **hadamard_constants(config.head_dim),
            **_constants(config, rope, pools),
        },
        packing_prelude(pools.format, config.head_dim),
    )


def _tensors(
    moves: Tensor, rope: LayerRope | None, pools: KvPools, layer: int
) -> dict[str, Tensor | None]:
    return {
        "moves": moves,
        "rope_cos_sin": rope.cos_sin if rope else None,
        "k_pool": pools.keys[layer],
        "v_pool": pools.values[layer],
    }


def _rotary_dim(config: ModelConfig, rope: LayerRope | None, label: str) -> int:
    return rotary_dim_of(config, rope.cos_sin if rope else None, label)


def _constants(
    config: ModelConfig, rope: LayerRope | None, pools: KvPools
) -> dict[str, bool | int | float]:
    return {"ROPE_UNSCALE": 1 / rope.factor if rope else 1.0, **paging(config, pools)}
