"""Comparison of a draft model's vocabulary with its large model's: a draft is an id, so both must
mean the same by it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gpu.errors import ModelError
from gpu.gguf.file import is_gguf
from gpu.text.tokenizer import Tokenizer


class Vocabulary(Protocol):
    """The tokens of a tokenizer, see `gpu.text.tokenizer.Tokenizer`."""

    @property
    def vocab_size(self) -> int: ...
    def piece(self, id: int) -> str: ...
    def token_bytes(self, id: int) -> bytes: ...


FILES = ("tokenizer.json", "tokenizer.model")


def expect_same_vocabulary(
    tokenizer: Vocabulary, draft: Path, own: Vocabulary | None = None
) -> None:
    """Raise ModelError unless the draft model at `draft` has the tokens of `tokenizer`. `own`: the
    draft model's tokenizer; None: it is read from its files. A folder without any is made for one
    model and has its tokens."""
    if own is None:
        if not is_gguf(draft) and not any((draft / name).exists() for name in FILES):
            return
        own = Tokenizer.load(draft)
    n = tokenizer.vocab_size
    if own.vocab_size != n:
        raise ModelError(
            f"the draft model {draft.name} has {own.vocab_size} tokens and the model {n}; a draft "
            "model must share the model's tokenizer, so use one of the same family"
        )
    for id in range(n):
        there, here = _token(own, id), _token(tokenizer, id)
        if there != here:
            raise ModelError(
                f"token {id} of the draft model {draft.name} is {there[1]!r}, and that of the "
                f"model {here[1]!r}; a draft model must share the model's tokenizer, so use one of "
                "the same family"
            )


def _token(tokenizer: Vocabulary, id: int) -> tuple[bytes, str]:
    """Return the bytes of a token and its name."""
    return tokenizer.token_bytes(id), tokenizer.piece(id)
