"""The configuration of an encoder-decoder: that of encoder and decoder, and the first token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpu.config.model import ModelConfig
from gpu.files.json_object import JsonObject


@dataclass(frozen=True, slots=True)
class EncoderDecoderConfig:
    """Configuration of an encoder-decoder. `start_id`: the token that the decoder reads first
    (decoder_start_token_id)."""

    encoder: ModelConfig
    decoder: ModelConfig
    start_id: int

    @classmethod
    def from_folder(cls, folder: Path) -> EncoderDecoderConfig:
        """Read and check a folder as transformers saves it. Raises ModelError."""
        encoder, decoder = ModelConfig.of_encoder_decoder(folder)
        generation = JsonObject.read_optional(folder / "generation_config.json")
        config = JsonObject.read(folder / "config.json")
        last = encoder.vocab_size - 1
        default = config.integer("pad_token_id", 0, last, 0)
        for place in (config, generation):
            default = place.integer("decoder_start_token_id", 0, last, default)
        return cls(encoder, decoder, default)
