"""RoBERTa (Liu et al. 2019): a BERT whose positions begin after that of padding."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.readers import Sizes
from gpu.architectures.encoders import bert
from gpu.files.json_object import JsonObject


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    padding = config.integer("pad_token_id", 0, sizes.context - 2, 1)
    return replace(bert.read_config(config, sizes), first_position=padding + 1)


ARCHITECTURE = replace(
    bert.ARCHITECTURE,
    model_type="roberta",
    read_config=read_config,
    tensors=bert.tensors("roberta"),
)
