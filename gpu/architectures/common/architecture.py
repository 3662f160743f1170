"""The record that the data file of an architecture holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu.architectures.common.gguf_format import GgufFormat
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.readers import Sizes
from gpu.architectures.common.tensor_map import TensorMap
from gpu.files.json_object import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture: one `model_type` of transformers. Its forward pass is Llama's, or
    another that `gpu.models.registry` names.

    read_config  reads what config.json says, without the sizes; raises ModelError for what cannot
                 be run
    tensors      the modules of a checkpoint; of an encoder-decoder those of its encoder
    decoder_tensors  of an encoder-decoder, the modules of its decoder; else None
    gguf         how GGUF files hold the model; None: GGUF is not supported
    torch        whether `gpu.pytorch` can run it
    config_keys  names of config.json that differ from Llama's: its own by Llama's
    tiny_config  config.json, by Llama's names, of the tiny model that `bench --report` checks,
                 where it differs from `TINY_CONFIG` of gpu/checks/tiny_models.py

    What config.json means by leaving a key out, as in transformers:

    tie_embeddings      embedding and output head are one matrix
    norm_eps            None: the key is required
    head_dim            None: hidden_size / n_heads
    n_kv_heads          None: n_heads
    intermediate_ratio  intermediate_size / hidden_size; None: the key is required
    context             max_position_embeddings; None: the key is required
    """

    model_type: str
    read_config: Callable[[JsonObject, Sizes], Hyperparameters]
    tensors: TensorMap
    decoder_tensors: TensorMap | None = None
    gguf: GgufFormat | None = None
    torch: bool = False
    config_keys: Mapping[str, str] = field(default_factory=dict)
    tiny_config: Mapping[str, Any] = field(default_factory=dict)
    tie_embeddings: bool = False
    norm_eps: float | None = None
    head_dim: int | None = None
    n_kv_heads: int | None = None
    intermediate_ratio: int | None = None
    context: int | None = None
