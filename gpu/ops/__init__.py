"""Operations that models are written with.

Each op checks shapes and records the dispatches of the shader of the same name, whose header gives
the formula. `gpu.reference` computes the same with NumPy.
"""

from gpu.ops.attention import attention, attention_merge
from gpu.ops.batch import Batch, KvSplits, KvStaging, RmsNormSplit
from gpu.ops.inspection import attention_weights, moe_expert_norms
from gpu.ops.interventions import SUBLAYERS, scale_heads, scale_residual, steer
from gpu.ops.layer_stats import layer_stats
from gpu.ops.lora import lora_expand
from gpu.ops.matmul import embed, matmul, qkv
from gpu.ops.moe import moe_combine, moe_matmul
from gpu.ops.moe_routing import (
    ExpertPermutation,
    ExpertRouting,
    is_permuted,
    moe_permute,
    moe_topk,
)
from gpu.ops.norms import Norm, norm, position_embedding, qk_norm_rope
from gpu.ops.quantize_activations import make_quantized_rows, quantize_activations
from gpu.ops.quantize_kv import inverse_hadamard, quantize_kv, round_kv
from gpu.ops.rms_norm_split import rms_norm_split
from gpu.ops.sampling import (
    RESULT_WORDS,
    SelfhashTensors,
    SlotTexts,
    SortKeys,
    logit_histogram,
    logit_scatter,
    logit_sort_keys,
    sample,
    selfhash_greenlist,
    watermark_keys,
)
from gpu.ops.shift_kv import LayerRope, make_moves, pack_moves, shift_kv, shift_quantized_kv

__all__ = [
    "RESULT_WORDS",
    "SUBLAYERS",
    "Batch",
    "ExpertPermutation",
    "ExpertRouting",
    "KvSplits",
    "KvStaging",
    "LayerRope",
    "Norm",
    "RmsNormSplit",
    "SelfhashTensors",
    "SlotTexts",
    "SortKeys",
    "attention",
    "attention_merge",
    "attention_weights",
    "embed",
    "inverse_hadamard",
    "is_permuted",
    "layer_stats",
    "logit_histogram",
    "logit_scatter",
    "logit_sort_keys",
    "lora_expand",
    "make_moves",
    "make_quantized_rows",
    "matmul",
    "moe_combine",
    "moe_expert_norms",
    "moe_matmul",
    "moe_permute",
    "moe_topk",
    "norm",
    "pack_moves",
    "position_embedding",
    "qk_norm_rope",
    "qkv",
    "quantize_activations",
    "quantize_kv",
    "rms_norm_split",
    "round_kv",
    "sample",
    "scale_heads",
    "scale_residual",
    "selfhash_greenlist",
    "shift_kv",
    "shift_quantized_kv",
    "steer",
    "watermark_keys",
]
