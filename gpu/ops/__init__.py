"""The operations models are written with. Each checks shapes and records the dispatches of its
shader; the shader of the same name says what it computes, `gpu.reference.ops` computes it with
NumPy.
"""

from gpu.ops.attention import attention, attention_cut, attention_merge
from gpu.ops.batch import Batch, NewHeads, NormParts, Splits
from gpu.ops.byte_rows import room_for_bytes, to_bytes
from gpu.ops.cache_heads import cache_heads, unrotate_heads
from gpu.ops.experts import (
    Grouping,
    Routing,
    choose_experts,
    combine_experts,
    experts,
    group_pairs,
    is_grouped,
)
from gpu.ops.inspection import attention_weights, expert_norms
from gpu.ops.lora import lora_expand
from gpu.ops.norm_parts import norm_parts
from gpu.ops.norms import Norm, add_positions, norm, place_heads
from gpu.ops.products import embed, matmul, qkv
from gpu.ops.reach import PARTS, scale_heads, scale_update, steer
from gpu.ops.sampling import RESULT_WORDS, keys_tensor, sample, sample_keys
from gpu.ops.statistics import layer_stats

__all__ = [
    "PARTS",
    "RESULT_WORDS",
    "Batch",
    "Grouping",
    "NewHeads",
    "Norm",
    "NormParts",
    "Routing",
    "Splits",
    "add_positions",
    "attention",
    "attention_cut",
    "attention_merge",
    "attention_weights",
    "cache_heads",
    "choose_experts",
    "combine_experts",
    "embed",
    "expert_norms",
    "experts",
    "group_pairs",
    "is_grouped",
    "keys_tensor",
    "layer_stats",
    "lora_expand",
    "matmul",
    "norm",
    "norm_parts",
    "place_heads",
    "qkv",
    "room_for_bytes",
    "sample",
    "sample_keys",
    "scale_heads",
    "scale_update",
    "steer",
    "to_bytes",
    "unrotate_heads",
]
