"""Files, name and tokenizer of a model, as the process of its engine gets them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from app.prompt.limited_tokenizer import LimitedTokenizer
from gpu import DtypeChoice, Tokenizer


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Files of a model.

    path       its folder or GGUF file
    name       name to display; None: that of the folder
    tokenizer  its tokenizer, if that is open already
    dtype      storage type of its weights where the settings leave it open; None: by its files
    """

    path: Path
    name: str | None = None
    tokenizer: LimitedTokenizer | Tokenizer | None = field(default=None, repr=False)
    dtype: DtypeChoice | None = None
