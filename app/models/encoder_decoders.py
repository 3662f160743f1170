"""Find the encoder-decoder of `--encoder-decoder-model`: a folder as transformers saves it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.config import Settings
from app.prompt.encoder_texts import EncoderTexts
from app.prompt.limited_tokenizer import LimitedTokenizer
from gpu import Footprint, ModelError, SentenceConfig


@dataclass(frozen=True, slots=True)
class EncoderDecoderModel:
    """Encoder-decoder whose files are on this machine. `n_bytes`: what it needs on the device."""

    path: Path
    texts: EncoderTexts
    n_bytes: int


def find_encoder_decoder(settings: Settings) -> EncoderDecoderModel | None:
    """Return the encoder-decoder that the settings name; None if they name none. Raises ModelError
    for what is none."""
    name = settings.encoder_decoder_model
    if name is None:
        return None
    path = Path(name)
    if not path.exists():
        raise ModelError(
            f"there is no folder {name!r}; --encoder-decoder-model takes the folder of a T5, mT5 "
            "or UMT5 as transformers saves it. `hf download google/flan-t5-small --local-dir "
            "FOLDER` fetches one from the hub"
        )
    n_bytes = Footprint.of_encoder_decoder(path).total
    texts = EncoderTexts(LimitedTokenizer.load(path), SentenceConfig())
    return EncoderDecoderModel(path, texts, n_bytes)
