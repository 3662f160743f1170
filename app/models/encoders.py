"""The models with encoders that a server has beside the model that writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.config import Settings
from app.models.embedding_models import EmbeddingModel, find_embedding_model
from app.models.encoder_decoders import EncoderDecoderModel, find_encoder_decoder
from app.prompt.encoder_texts import EncoderInputs


@dataclass(frozen=True, slots=True)
class EncoderFolders:
    """Folders of the embedding model and of the encoder-decoder; None: there is no such model."""

    embedding: Path | None = None
    encoder_decoder: Path | None = None


NO_ENCODERS = EncoderFolders()


@dataclass(frozen=True, slots=True)
class Encoders:
    """Embedding model and encoder-decoder; None: there is no such model."""

    embedding: EmbeddingModel | None
    encoder_decoder: EncoderDecoderModel | None

    @classmethod
    def find(cls, settings: Settings) -> Encoders:
        """Return the models that the settings name. Raises ModelError and HubError."""
        return cls(find_embedding_model(settings), find_encoder_decoder(settings))

    @property
    def folders(self) -> EncoderFolders:
        return EncoderFolders(
            self.embedding.path if self.embedding else None,
            self.encoder_decoder.path if self.encoder_decoder else None,
        )

    @property
    def inputs(self) -> EncoderInputs:
        return EncoderInputs(
            self.embedding.texts if self.embedding else None,
            self.encoder_decoder.texts if self.encoder_decoder else None,
        )

    @property
    def n_bytes(self) -> int:
        """What they need on the device."""
        return sum(model.n_bytes for model in (self.embedding, self.encoder_decoder) if model)
