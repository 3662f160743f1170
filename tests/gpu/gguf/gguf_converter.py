"""Metadata and weight changes that llama.cpp's converter (conversion/ of that project) makes for a
model folder of every supported architecture. Names are those of its `gguf` package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig

F32 = npt.NDArray[np.float32]
Values = dict[str, Any]

ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "smollm3": "smollm3",
    "granite": "granite", "qwen2": "qwen2", "qwen3": "qwen3", "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe", "olmoe": "olmoe", "olmo2": "olmo2", "phi3": "phi3",
    "gemma2": "gemma2", "gemma3_text": "gemma3", "gpt2": "gpt2", "gpt_neox": "gptneox",
}  # fmt: skip
PERMUTED = ("llama", "smollm3", "granite")
_NOT_OF_GPT = (
    "attention.key_length", "attention.value_length", "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon", "rope.freq_base",
)  # fmt: skip
_EXPERT = re.compile(r"(model\.layers\.\d+)\.(mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")


def values(folder: Path) -> Values:
    """Return metadata by key without the architecture's name. None: the converter does not write
    it."""
    config, settings = ModelConfig.from_folder(folder), json.loads(_text(folder))
    rope = settings.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    found = {
        "context_length": config.context,
        "embedding_length": config.hidden_size,
        "block_count": config.n_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.rope_dim,
        "rope.freq_base": config.rope.theta,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
    }
    if rope.get("rope_type") in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
        original = rope.get("original_max_position_embeddings")
        found["rope.scaling.original_context_length"] = original
    if config.experts:
        found |= {
            "expert_count": config.experts.n_experts,
            "expert_used_count": config.experts.experts_per_token,
            "expert_feed_forward_length": settings.get("moe_intermediate_size"),
            "expert_shared_feed_forward_length": settings.get("shared_expert_intermediate_size"),
        }
    return found | _own(config, settings)


def _own(config: ModelConfig, settings: Values) -> Values:
    match config.model_type:
        case "granite":
            return {
                "attention.key_length": None,
                "attention.value_length": None,
                "attention.scale": settings["attention_multiplier"],
                "embedding_scale": settings["embedding_multiplier"],
                "residual_scale": settings["residual_multiplier"],
                "logit_scale": settings["logits_scaling"],
            }
        case "phi3":
            said = {"attention.sliding_window": settings["sliding_window"] or 0}
            if config.rope.scaling == "longrope":
                said["rope.scaling.original_context_length"] = config.rope.original_context
                said["rope.scaling.attn_factor"] = config.rope.attention_factor
            return {"attention.key_length": None, "attention.value_length": None, **said}
        case "gemma2":
            caps = ("attn_logit_softcapping", "final_logit_softcapping")
            window = {"attention.sliding_window": settings["sliding_window"]}
            return {"rope.freq_base": None, **window, **{cap: settings[cap] for cap in caps}}
        case "gemma3_text":
            kinds = [kind == "sliding_attention" for kind in settings["layer_types"]]
            local = settings["rope_parameters"]["sliding_attention"]["rope_theta"]
            return {
                "attention.sliding_window": settings["sliding_window"],
                "rope.freq_base_swa": local,
                "attention.sliding_window_pattern": kinds if kinds[0] is False else None,
            }
        case "gpt2":
            left_out = dict.fromkeys((*_NOT_OF_GPT, "rope.dimension_count"))
            return {**left_out, "attention.layer_norm_epsilon": config.norm_eps}
        case "gpt_neox":
            return {
                **dict.fromkeys(_NOT_OF_GPT),
                "attention.layer_norm_epsilon": config.norm_eps,
                "use_parallel_residual": config.parallel_residual,
            }
    return {}


def tensors(folder: Path) -> Iterator[tuple[str, F32]]:
    """Yield tensors in the order of the checkpoint, experts of a layer at the position of the
    first; then those of rotary positions."""
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == _architecture(config))
    names = gguf.get_tensor_name_map(arch, config.n_layers)

    def named(name: str) -> str:
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, f"{name} has no name in {arch}"
        return found

    for name in checkpoint.names():
        expert = _EXPERT.fullmatch(name)
        if expert is None:
            yield named(name), _changed(config, name, checkpoint.read_f32(name))
        elif expert[3] == "0":
            layer, module, _, matrix = expert.groups()
            assert config.experts is not None
            ends = (
                f"{module}.experts.{i}.{matrix}.weight" for i in range(config.experts.n_experts)
            )
            together = np.stack([checkpoint.read_f32(f"{layer}.{end}") for end in ends])
            mixtral = f"{layer.removeprefix('model.')}.feed_forward.experts.{matrix}.weight"
            plain = f"{layer}.mlp.experts.{matrix}.weight"
            yield named(mixtral if module == "block_sparse_moe" else plain), together
    rope = config.rope
    if rope.scaling == "longrope":
        yield "rope_factors_long.weight", np.array(rope.long_factors, np.float32)
        yield "rope_factors_short.weight", np.array(rope.short_factors, np.float32)


def _changed(config: ModelConfig, name: str, data: F32) -> F32:
    if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
        return data + np.float32(1)
    if config.model_type == "gpt2" and re.search(r"\.c_(attn|proj|fc)\.weight", name):
        return np.ascontiguousarray(data.T)
    if config.model_type == "gpt_neox" and ".query_key_value." in name:
        heads = data.reshape(config.n_heads, 3, config.head_dim, -1)
        return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(data.shape)
    if _architecture(config) in PERMUTED:
        for end, n_heads in (("q_proj", config.n_heads), ("k_proj", config.n_kv_heads)):
            if f".{end}." in name:
                halves = data.reshape(n_heads, 2, -1, *data.shape[1:])
                return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(data.shape)
    return data.reshape(-1) if name.endswith("shared_expert_gate.weight") else data


def architecture(folder: Path) -> str:
    return _architecture(ModelConfig.from_folder(folder))


def _architecture(config: ModelConfig) -> str:
    return ARCHITECTURES[config.model_type]


def _text(folder: Path) -> str:
    return (folder / "config.json").read_text("utf-8")
