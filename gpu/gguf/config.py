"""The metadata of a GGUF file as the config.json that a folder of the same model would have, so
that one place judges both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpu.errors import ModelError
from gpu.gguf.file import GgufFile, open_gguf
from gpu.gguf.names import ROPE_FACTORS
from gpu.json_object import JsonObject, shown

MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Architectures whose tensors are known here, and their `model_type`. Mistral's files say llama."""
PERMUTED = ("llama",)
"""Those whose rotary pairs are neighbours in the file; see `gpu.gguf.names.pair_order`."""
MAX_HEADS = 4096
LLAMA3_ROPE = (8192, 1.0, 4.0)
"""original_max_position_embeddings, low_freq_factor and high_freq_factor."""


def architecture(file: GgufFile) -> str:
    """Raises ModelError for one that is not in `MODEL_TYPES`."""
    found = file.values.get("general.architecture")
    if not isinstance(found, str) or found not in MODEL_TYPES:
        raise ModelError(
            f"{file.path}: architecture {shown(found)} is not supported in a GGUF file; "
            f"supported: {', '.join(MODEL_TYPES)}"
        )
    return str(found)


def permuted_heads(file: GgufFile) -> dict[str, int]:
    """Projections whose rows are in another order than a checkpoint's, and their heads."""
    arch = architecture(file)
    if arch not in PERMUTED:
        return {}
    meta = JsonObject(f"{file.path}: metadata", dict(file.values))
    n_heads = meta.integer(f"{arch}.attention.head_count", 1, MAX_HEADS)
    n_kv = meta.integer(f"{arch}.attention.head_count_kv", 1, MAX_HEADS, n_heads)
    return {"attn_q": n_heads, "attn_k": n_kv}


def config_of(path: str | Path) -> JsonObject:
    """What config.json would say. Raises ModelError for what cannot be said there."""
    file = open_gguf(path)
    arch = architecture(file)
    meta = JsonObject(f"{file.path}: metadata", dict(file.values))

    def get(key: str) -> Any:
        return meta.get(f"{arch}.{key}")

    embedding = _shape(file, "token_embd.weight")
    values: dict[str, Any] = {
        "model_type": MODEL_TYPES[arch],
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length"),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": _decimal(get("attention.layer_norm_rms_epsilon")),
        "vocab_size": embedding[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _ends(meta),
        "rope_parameters": _rope(file, arch, meta),
    }
    if arch == "llama":
        values["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        values["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    return JsonObject(meta.where, {k: v for k, v in values.items() if v is not None})


def _ends(meta: JsonObject) -> list[Any]:
    """The ids that end a text or a turn."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (meta.get(f"tokenizer.ggml.{key}") for key in keys)
    return list(dict.fromkeys(id for id in found if id is not None))


def _rope(file: GgufFile, arch: str, meta: JsonObject) -> dict[str, Any]:
    theta = _decimal(meta.number(f"{arch}.rope.freq_base", 1.0, 1e12, 10000.0))
    heads = meta.integer(f"{arch}.attention.head_count", 1, MAX_HEADS)
    width = _shape(file, "token_embd.weight")[1]
    head_dim = meta.integer(f"{arch}.attention.key_length", 1, 4096, width // heads)
    if meta.integer(f"{arch}.rope.dimension_count", 1, 4096, head_dim) != head_dim:
        raise meta.error(f"{arch}.rope.dimension_count", f"{head_dim}, the whole head")
    kind = meta.choice(f"{arch}.rope.scaling.type", ("none", "linear"), "none")
    if ROPE_FACTORS in file.tensors:
        return {"rope_theta": theta, **_llama3(file, theta, head_dim)}
    if kind == "linear":
        factor = meta.number(f"{arch}.rope.scaling.factor", 1.0, 1e6)
        return {"rope_theta": theta, "rope_type": "linear", "factor": factor}
    return {"rope_theta": theta, "rope_type": "default"}


def _llama3(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """The file holds what each frequency is divided by, not the settings that gave it. Llama 3's
    are known but for one, which is the greatest of these factors; others are refused."""
    tensor = file.tensors[ROPE_FACTORS]
    if tensor.type.name != "F32" or tensor.shape != (head_dim // 2,):
        raise ModelError(
            f"{file.path}: {ROPE_FACTORS} should be F32 ({head_dim // 2},), but is "
            f"{tensor.type.name} {tensor.shape}"
        )
    factors = tensor.data.view("<f4").astype(np.float64)
    factor = float(factors.max())
    original, low, high = LLAMA3_ROPE
    turns = original * theta ** -(np.arange(0, head_dim, 2) / head_dim) / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    expected = 1 / (kept + (1 - kept) / factor)
    if not (factor >= 1 and np.allclose(factors, expected, rtol=1e-4)):
        raise ModelError(f"{file.path}: {ROPE_FACTORS} are not those of Llama 3")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _decimal(number: Any) -> Any:
    """The file has float32 where config.json has a decimal: the shortest one of that float32."""
    return float(str(np.float32(number))) if isinstance(number, float) else number


def _shape(file: GgufFile, name: str) -> tuple[int, ...]:
    tensor = file.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise ModelError(f"{file.path}: has no matrix {name}; is it a whole model?")
    return tensor.shape
