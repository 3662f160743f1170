"""What GGUF calls tensors, and what checkpoints of Hugging Face call them."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gpu.errors import ModelError

OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
_LAYER = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)", re.ASCII)
_OUTSIDE = re.compile(r"(\w+)\.(weight|bias)", re.ASCII)


def checkpoint_name(name: str) -> str:
    """The name in a checkpoint of the tensor that GGUF calls `name`; the same where there is
    none."""
    if (layer := _LAYER.fullmatch(name)) and layer[2] in IN_LAYER:
        return f"model.layers.{int(layer[1])}.{IN_LAYER[layer[2]]}.{layer[3]}"
    if (outside := _OUTSIDE.fullmatch(name)) and outside[1] in OUTSIDE:
        return f"{OUTSIDE[outside[1]]}.{outside[2]}"
    return name


def pair_order(n_rows: int, n_heads: int, where: str) -> npt.NDArray[np.intp]:
    """(n_rows,): where each row of a query or key projection lies in a file of llama.cpp, which
    has row j of a head's lower half beside row j of its upper half. Raises ModelError when the
    heads have no halves."""
    if n_rows % (2 * n_heads):
        raise ModelError(f"{where} has {n_rows} rows; expected a multiple of 2 × {n_heads} heads")
    lies = np.arange(n_rows).reshape(n_heads, -1, 2)
    return lies.swapaxes(1, 2).reshape(-1)
