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


@dataclass(slots=True)
class EncoderFolders:
    """Folders of the embedding model and of the encoder-decoder; None: there is no such model. An
    engine that is loaded again reads them again."""

    embedding: Path | None = None
    encoder_decoder: Path | None = None


class Encoders:
    """Embedding model and encoder-decoder; None: there is no such model.

    folders  for the engine
    inputs   for the routes
    """

    def __init__(
        self, embedding: FoundEncoder | None = None, encoder_decoder: FoundEncoder | None = None
    ) -> None:
        self.folders, self.inputs = EncoderFolders(), EncoderInputs()
        self._n_bytes = {"embedding": 0, "encoder_decoder": 0}
        if embedding is not None:
            self.set_embedding(embedding)
        if encoder_decoder is not None:
            self.folders.encoder_decoder = encoder_decoder.path
            self.inputs.encoder_decoder = encoder_decoder.texts
            self._n_bytes["encoder_decoder"] = encoder_decoder.n_bytes

    def set_embedding(self, found: FoundEncoder) -> None:
        """Replace the embedding model; the engine has it when it is loaded again."""
        self.folders.embedding = found.path
        self.inputs.embedding = found.texts
        self._n_bytes["embedding"] = found.n_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes that both models need on the device."""
        return sum(self._n_bytes.values())
