"""Shapes of mixtures of experts, and a routing that gives every expert as many rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES
from gpu.config import ModelConfig, MoeConfig
from gpu.ops.cost import constants_of
from gpu.webgpu.plan import Dispatch

MOE_SHAPES = {
    "mixtral8x7b": replace(
        LLAMA_SHAPES["llama8b"],
        model_type="mixtral",
        vocab_size=32000,
        experts=MoeConfig(8, 2, 14336, norm_topk_prob=True),
    ),
    "qwen3_30b": replace(
        LLAMA_SHAPES["llama1b"],
        model_type="qwen3_moe",
        n_layers=48,
        n_kv_heads=4,
        head_dim=128,
        vocab_size=151936,
        tie_embeddings=False,
        experts=MoeConfig(128, 8, 768, norm_topk_prob=True),
    ),
}
"""Mixtral 8x7B, and Qwen3 30B A3B: few large experts, and many small ones."""

_EXPERT_MODULES = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
}
"""Names of a mixture in a checkpoint: the mixture; gate, up and down of an expert."""


def expert_shapes(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of a layer's mixture and, in Qwen 3, its norms of heads."""
    moe, prefix, hidden = config.experts, f"model.layers.{layer}", config.hidden_size
    assert moe is not None
    name, (gate, up, down) = _EXPERT_MODULES[config.model_type]
    yield f"{prefix}.{name}.gate.weight", (moe.n_experts, hidden)
    for expert in range(moe.n_experts):
        module = f"{prefix}.{name}.experts.{expert}"
        yield f"{module}.{gate}.weight", (moe.intermediate_size, hidden)
        yield f"{module}.{up}.weight", (moe.intermediate_size, hidden)
        yield f"{module}.{down}.weight", (hidden, moe.intermediate_size)
    if config.model_type == "qwen3_moe":
        for head in ("q", "k"):
            yield f"{prefix}.self_attn.{head}_norm.weight", (config.head_dim,)


def even_routing(n_rows: int, moe: MoeConfig) -> npt.NDArray[np.uint32]:
    """Return experts (n_rows, experts_per_token) such that any rows that follow each other use all
    experts alike, and those of one row lie far apart."""
    n, k = moe.n_experts, moe.experts_per_token
    stride = next(s for s in range(n // k + 1, 2 * n + 2) if math.gcd(s, n) == 1)
    return (np.arange(n_rows * k, dtype=np.uint32) * stride % n).reshape(n_rows, k)


def busy_tiles(
    dispatch: Dispatch, expert_of_tile: npt.NDArray[np.uint32], moe: MoeConfig
) -> tuple[int | None, int]:
    """Return a tile of `moe_matmul` whose expert is in the dispatch's shard, None if there is none,
    and how many tiles are on average in such a shard."""
    c = constants_of(dispatch)
    slot = expert_of_tile.astype(np.int64) - c["FIRST_SLOT"]
    busy = np.flatnonzero((slot >= 0) & (slot < c["N_SLOTS"]))
    n = max(1, round(len(slot) * c["N_SLOTS"] / moe.n_experts))
    return (int(busy[len(busy) // 2]) if len(busy) else None), n
