"""What a storage type of the weights costs on a text: its perplexity, and how far the logits are
from those of float32 weights.

The text is cut into windows of the same length, each read on its own: from the token that begins
texts, where the tokenizer has one, and every token after it is foretold from those before it in its
window. (Numbers of other programs that let windows overlap are lower.) One engine is loaded at a
time; the logits of float32 wait in a file meanwhile.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

import numpy as np

from gpu.errors import InvalidRequest
from gpu.reference.divergence import Divergence, mean_loss
from gpu.step import Floats

REFERENCE = "f32"
PIECE = 64
"""Positions that are compared at a time: in double precision they take some room."""


class Engine(Protocol):
    """What is measured of an engine; see `gpu.engine.engine.Engine`."""

    def logits(self, ids: list[int]) -> Floats: ...
    def close(self) -> None: ...


class Encoder(Protocol):
    """What is needed of a tokenizer; see `gpu.text.tokenizer.Tokenizer`."""

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are read together; those from `first` on are foretold and counted."""

    ids: tuple[int, ...]
    first: int

    @property
    def n_counted(self) -> int:
        return len(self.ids) - self.first


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Of one storage type: exp of the mean loss in nats over `n_tokens` tokens. `divergence`: from
    float32, None for that itself."""

    dtype: str
    perplexity: float
    n_tokens: int
    divergence: Divergence | None


def windows(tokenizer: Encoder, text: str, size: int, most: int) -> list[Window]:
    """A text as windows of `size` tokens, the last one shorter, `most` tokens of the text in all.
    Raises InvalidRequest for a text of which no token could be foretold."""
    begin = tuple(tokenizer.encode("", specials=False))
    ids = tokenizer.encode(text, bos=False, specials=False)[:most]
    step, first = size - len(begin), max(1, len(begin))
    if step < 2:
        raise InvalidRequest(f"a window of {size} tokens is too short; give it more", "window")
    cut = [Window((*begin, *ids[at : at + step]), first) for at in range(0, len(ids), step)]
    cut = [window for window in cut if window.n_counted > 0]
    if not cut:
        raise InvalidRequest(f"the text has {len(ids)} tokens, too few to foretell one", "text")
    return cut


def perplexity(engine: Engine, cut: Sequence[Window]) -> float:
    """Of what an engine's model makes of a text in windows."""
    loss = sum(_loss(_foretelling(engine, window), window) for window in cut)
    return math.exp(loss / sum(window.n_counted for window in cut))


def perplexities(
    load: Callable[[str], Engine], cut: Sequence[Window], dtypes: Sequence[str]
) -> Iterator[Perplexity]:
    """Of float32 and then of each other type, as they are measured. `load` gives an engine of a
    storage type, which is closed after it."""
    with tempfile.TemporaryFile() as kept:
        for dtype in dict.fromkeys((REFERENCE, *dtypes)):
            engine = load(dtype)
            try:
                yield _measure(engine, dtype, cut, kept)
            finally:
                engine.close()


def _measure(engine: Engine, dtype: str, cut: Sequence[Window], kept: IO[bytes]) -> Perplexity:
    """Of one engine. `kept`: written with the logits of float32, and read for all others."""
    kept.seek(0)
    loss, parts = 0.0, []
    for window in cut:
        logits = _foretelling(engine, window)
        loss += _loss(logits, window)
        if dtype == REFERENCE:
            kept.write(np.ascontiguousarray(logits, np.float32).tobytes())
            continue
        data = kept.read(4 * logits.size)
        reference = np.frombuffer(data, np.float32).reshape(logits.shape)
        for at in _pieces(len(logits)):
            parts.append((len(logits[at]), Divergence.of(reference[at], logits[at])))
    n_tokens = sum(window.n_counted for window in cut)
    divergence = Divergence.mean(parts) if parts else None
    return Perplexity(dtype, math.exp(loss / n_tokens), n_tokens, divergence)


def _foretelling(engine: Engine, window: Window) -> Floats:
    """Logits (n_counted, vocab_size) of the tokens that are counted."""
    return engine.logits(list(window.ids))[window.first - 1 : -1]


def _loss(logits: Floats, window: Window) -> float:
    """Nats of all tokens that are counted, a few positions at a time."""
    ids = window.ids[window.first :]
    return sum(len(ids[at]) * mean_loss(logits[at], ids[at]) for at in _pieces(len(ids)))


def _pieces(n: int) -> Iterator[slice]:
    return (slice(at, min(n, at + PIECE)) for at in range(0, n, PIECE))
