"""Opening of a model: its config and its weights, which may contradict it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from gpu.architectures.common.tensor_map import TensorMap
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.tensor_names import decoder_map_of, tensor_map_of
from gpu.config import ModelConfig
from gpu.config.encoder_decoder import EncoderDecoderConfig
from gpu.errors import ModelError

log = logging.getLogger(__name__)


def open_model(folder: str | Path) -> tuple[ModelConfig, Checkpoint]:
    """Open a model folder or a GGUF file. Raises ModelError."""
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    return with_own_head(config, checkpoint), checkpoint


def open_encoder_decoder(folder: Path) -> tuple[EncoderDecoderConfig, Checkpoint]:
    """Open the folder of an encoder-decoder. Raises ModelError."""
    config, checkpoint = EncoderDecoderConfig.from_folder(folder), Checkpoint.open(folder)
    decoder = with_own_head(config.decoder, checkpoint, decoder_map_of(config.decoder))
    return replace(config, decoder=decoder), checkpoint


def with_own_head(
    config: ModelConfig, checkpoint: Checkpoint, tensors: TensorMap | None = None
) -> ModelConfig:
    """Return `config` with untied embeddings if the file has an output head of other numbers than
    the embedding, as `transformers` 5 does: it was trained while the config still says tied.
    `tensors`: the map of the checkpoint; None: the one of `tensor_map_of`.

    Raises ModelError for a tied model that was saved with its head alone.
    """
    tensors = tensors or tensor_map_of(config, checkpoint)
    names = tensors.head, tensors.embedding
    if not config.tie_embeddings or tensors.head not in checkpoint:
        return config
    if tensors.embedding not in checkpoint:
        raise ModelError(
            f"{checkpoint.folder}: the model was saved with {tensors.head} alone, without its "
            "embedding, which the config says is the same matrix; load it with transformers and "
            "save it again with save_pretrained, which writes the embedding"
        )
    if checkpoint.are_equal(*names):
        return config
    log.info(
        "%s: %s differs from %s, so it is used, although the config says that they are tied",
        checkpoint.folder,
        *names,
    )
    return replace(config, tie_embeddings=False)
