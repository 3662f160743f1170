"""The models with encoders that a server has beside the model that writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.prompt.encoder_texts import EncoderInputs, EncoderTexts


@dataclass(frozen=True, slots=True)
class FoundEncoder:
    """Embedding model or encoder-decoder whose files are on this machine. `n_bytes`: what it needs
    on the device."""

    path: Path
    texts: EncoderTexts
    n_bytes: int


@dataclass(frozen=True, slots=True)
class EncoderFolders:
    """Folders of the embedding model and of the encoder-decoder; None: there is no such model."""

    embedding: Path | None = None
    encoder_decoder: Path | None = None


NO_ENCODERS = EncoderFolders()


@dataclass(frozen=True, slots=True)
class Encoders:
    """Embedding model and encoder-decoder; None: there is no such model."""

    embedding: FoundEncoder | None
    encoder_decoder: FoundEncoder | None

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
        """Bytes that both models need on the device."""
        return sum(model.n_bytes for model in (self.embedding, self.encoder_decoder) if model)
