"""The models with encoders that a server has beside the model that writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.prompt.encoder_texts import EncoderInputs, EncoderTexts
from app.prompt.limited_tokenizer import LimitedTokenizer


@dataclass(frozen=True, slots=True)
class FoundEncoder:
    """Embedding model or encoder-decoder whose files are on this machine. `n_bytes`: what it needs
    on the device."""

    path: Path
    texts: EncoderTexts
    n_bytes: int

    def close(self) -> None:
        """End the process of its tokenizer, if it has one."""
        if isinstance(self.texts.tokenizer, LimitedTokenizer):
            self.texts.tokenizer.close()


@dataclass(slots=True)
class EncoderFolders:
    """Folders of the embedding model and of the encoder-decoder; None: there is no such model. An
    engine that is loaded again reads them again."""

    embedding: Path | None = None
    encoder_decoder: Path | None = None


class Encoders:
    """The models with encoders of a server: its embedding model and its encoder-decoder, of which
    it may lack either.

    folders  where they are, for the engine
    inputs   their texts, for the routes
    """

    def __init__(
        self, embedding: FoundEncoder | None = None, encoder_decoder: FoundEncoder | None = None
    ) -> None:
        self.folders, self.inputs = EncoderFolders(), EncoderInputs()
        self.encoder_decoder = encoder_decoder
        if encoder_decoder is not None:
            self.folders.encoder_decoder = encoder_decoder.path
            self.inputs.encoder_decoder = encoder_decoder.texts
        self.set_embedding(embedding)

    def set_embedding(self, found: FoundEncoder | None) -> None:
        """Replace the embedding model; the engine has it when it is loaded again."""
        self.embedding = found
        self.folders.embedding = found.path if found is not None else None
        self.inputs.embedding = found.texts if found is not None else None

    @property
    def n_bytes(self) -> int:
        """Bytes that both models need on the device."""
        return sum(model.n_bytes for model in (self.embedding, self.encoder_decoder) if model)
