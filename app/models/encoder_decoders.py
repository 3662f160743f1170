"""Find the encoder-decoder of `--encoder-decoder-model`: a folder as transformers saves it."""

from __future__ import annotations

from pathlib import Path

from app.config import Settings
from app.models.encoders import FoundEncoder
from app.prompt.encoder_texts import EncoderTexts
from app.prompt.limited_tokenizer import LimitedTokenizer
from gpu import Footprint, ModelError, SentenceConfig


def find_encoder_decoder(settings: Settings) -> FoundEncoder | None:
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
    return FoundEncoder(path, texts, n_bytes)
