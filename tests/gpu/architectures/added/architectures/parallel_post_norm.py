"""A made-up architecture: Llama whose attention and MLP run in parallel, with norms after them."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures import llama
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import (
    MLP,
    OUT_PROJ,
    POST_ATTENTION_NORM,
    POST_FEEDFORWARD_NORM,
    QKV_PROJ,
    llama_tensors,
)
from gpu.architectures.common.readers import Sizes
from gpu.files.json_object import JsonObject


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    return replace(llama.read_config(config, sizes), parallel_residual=True)


ARCHITECTURE = Architecture(
    model_type="parallel_post_norm",
    read_config=read_config,
    tensors=llama_tensors(
        {**QKV_PROJ, **OUT_PROJ, **POST_ATTENTION_NORM, **MLP, **POST_FEEDFORWARD_NORM}
    ),
    torch=True,
    norm_eps=1e-5,
)
