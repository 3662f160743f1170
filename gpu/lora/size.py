"""Device memory of adapters, computed from the headers of their files."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.checkpoint.packing import row_words
from gpu.checkpoint.reader import WeightSource
from gpu.config import ModelConfig
from gpu.lora.adapter import Lora
from gpu.lora.stack import VEC4, modules_with_own_a
from gpu.lora.targets import EXPERT_OPS, LoraTarget, lora_targets


def lora_bytes(loras: Sequence[Lora], config: ModelConfig, base: WeightSource) -> int:
    """Return the bytes of the adapters' `gpu.lora.stack.LoraStack`s for all matrices of the base,
    without the small tables that layers share."""
    matrices: dict[tuple[int, str], list[LoraTarget]] = {}
    for linear in lora_targets(config, base):
        matrices.setdefault((linear.layer, linear.op), []).append(linear)
    n_experts = config.experts.n_experts if config.experts else 1
    return sum(
        _bytes(loras, parts, n_experts if op in EXPERT_OPS else 1)
        for (_, op), parts in matrices.items()
    )


def _bytes(loras: Sequence[Lora], parts: Sequence[LoraTarget], n_experts: int) -> int:
    """Return the bytes for one matrix made of `parts`, or for those of all experts."""
    n_ranks = sum(max(lora.rank(part.module) for part in parts) for lora in loras)
    width = -(-sum(part.n_out for part in parts) // n_experts // VEC4) * VEC4
    n_modules = each = len(parts) // n_experts
    if parts[0].op in EXPERT_OPS:
        modules = [part.module for part in parts]
        of_each = [modules[i : i + each] for i in range(0, len(modules), each)]
        n_modules = modules_with_own_a(loras, of_each)
    return 4 * n_ranks * n_experts * (n_modules * row_words("f32", parts[0].n_in) + width)
