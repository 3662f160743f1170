"""What adapters take on the device, known from the headers of their files."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.checkpoint.packing import row_words
from gpu.checkpoint.reader import WeightSource
from gpu.config import ModelConfig
from gpu.lora.adapter import Lora
from gpu.lora.base import EXPERT_OPS, Linear, linears
from gpu.lora.stack import FOUR


def stacked_bytes(loras: Sequence[Lora], config: ModelConfig, base: WeightSource) -> int:
    """Of their `gpu.lora.stack.Stack`s, for all matrices of the base, without the tables of a few
    bytes that layers share."""
    matrices: dict[tuple[int, str], list[Linear]] = {}
    for linear in linears(config, base):
        matrices.setdefault((linear.layer, linear.op), []).append(linear)
    n_experts = config.experts.n if config.experts else 1
    return sum(
        _bytes(loras, parts, n_experts if op in EXPERT_OPS else 1)
        for (_, op), parts in matrices.items()
    )


def _bytes(loras: Sequence[Lora], parts: Sequence[Linear], n_matrices: int) -> int:
    """Of so many matrices of one shape that are made of these."""
    n_ranks = sum(max(lora.rank(part.module) for part in parts) for lora in loras)
    width = -(-sum(part.n_out for part in parts) // n_matrices // FOUR) * FOUR
    return 4 * n_ranks * (len(parts) * row_words("f32", parts[0].n_in) + n_matrices * width)
