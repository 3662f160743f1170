"""Tiny models of every architecture with random weights, made in memory."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpu.architectures import ARCHITECTURES
from gpu.checkpoint.config_shapes import config_modules
from gpu.checkpoint.tensor_names import has_biases
from gpu.checks.rig import Array, Arrays
from gpu.config import ModelConfig

VOCAB = 300
CONTEXT = 128
ENLARGED = ("attn.qkv", "embed", "head")
"""Dispatches whose weights enlarge their input, so that attention is peaked in places and flat in
others, and logits differ clearly. The others keep its size."""

TINY_CONFIG: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 72,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 100,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
"""config.json of every tiny model, where the `tiny_config` of its architecture says no other."""


def tiny_model(model_type: str) -> tuple[ModelConfig, Arrays]:
    """Return the configuration and the weights of an architecture's tiny model."""
    architecture = ARCHITECTURES[model_type]
    keys = architecture.config_keys
    settings = {keys.get(k, k): v for k, v in {**TINY_CONFIG, **architecture.tiny_config}.items()}
    with tempfile.TemporaryDirectory(prefix="tokenglass-tiny-") as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"model_type": model_type, **settings}), "utf-8")
        config = ModelConfig.from_folder(folder)
    return config, Arrays(dict(_random_tensors(config)))


def _random_tensors(config: ModelConfig) -> Iterator[tuple[str, Array]]:
    """Yield every tensor with random numbers; every call gives the same ones."""
    plus_one = ARCHITECTURES[config.model_type].tensors.norm_plus_one
    for module, role, outputs_first in config_modules(config, stacked=False):
        name = f"{module}.weight"
        shape = outputs_first[::-1] if role.layout == "transposed" else outputs_first
        yield name, _random_weight(name, shape, role.op, plus_one)
        if has_biases(config, role):
            name = f"{module}.bias"
            yield name, _rng(name).normal(0, 0.3, outputs_first[0]).astype(np.float32)


def _random_weight(name: str, shape: tuple[int, ...], op: str, plus_one: bool) -> Array:
    rng = _rng(name)
    if len(shape) == 1:
        low, high = (-0.5, 0.5) if plus_one else (0.5, 1.5)
        return rng.uniform(low, high, shape).astype(np.float32)
    gain = 2.0 if op in ENLARGED else 1.0
    return rng.normal(0, gain / shape[1] ** 0.5, shape).astype(np.float32)


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))
