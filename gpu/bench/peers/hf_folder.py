"""A model as a Hugging Face folder, as transformers reads it: config.json, model.safetensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from gpu.bench.subject import BenchModel
from gpu.checkpoint.reader import NOT_PARAMETERS
from gpu.checkpoint.safetensors_files import WEIGHTS
from gpu.config import ModelConfig, RopeConfig

DTYPES = {"f32": "F32"}
"""safetensors' names of weight formats. Others are stored in float16, the nearest format that
transformers computes with."""
ROWS_BYTES = 64 << 20
"""Approximate bytes of a matrix in memory at a time."""


def write(subject: BenchModel, dtype: str, folder: Path) -> None:
    """Write the folder. Raises ModelError if a weight is too large for float16."""
    config = as_json(subject.config)
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    checkpoint = subject.checkpoint
    names = [name for name in checkpoint.names() if not name.endswith(NOT_PARAMETERS)]
    stored = DTYPES.get(dtype, "F16")
    item_bytes = 4 if stored == "F32" else 2
    read = checkpoint.read_f32 if stored == "F32" else checkpoint.read_f16
    header, at = {}, 0
    for name in names:
        shape = checkpoint.shape(name)
        end = at + math.prod(shape) * item_bytes
        header[name] = {"dtype": stored, "shape": shape, "data_offsets": (at, end)}
        at = end
    text = json.dumps(header).encode()
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            n, *row = checkpoint.shape(name)
            step = max(1, ROWS_BYTES // (4 * math.prod(row)))
            for first in range(0, n, step):
                rows = read(name, slice(first, min(first + step, n)))
                file.write(np.ascontiguousarray(rows).tobytes())


def as_json(config: ModelConfig) -> dict[str, Any]:
    """Return config.json with keys that every version of transformers reads."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": config.model_type,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "rope_theta": config.rope.theta,
        "rope_scaling": _scaling(config.rope),
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids),
    }


def _scaling(rope: RopeConfig) -> dict[str, Any] | None:
    if rope.scaling == "default":
        return None
    scaling: dict[str, Any] = {"rope_type": rope.scaling, "factor": rope.factor}
    if rope.scaling == "llama3":
        scaling |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_context,
        }
    return scaling
