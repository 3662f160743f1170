"""What a storage type of the weights, or of the KV cache, costs on a text: its perplexity, and how
far the logits are from those of a reference.

The text is cut into windows of the same length, each read on its own: from the token that begins
texts, where the tokenizer has one, and every token after it is foretold from those before it in its
window. (Numbers of other programs that let windows overlap are lower.) One engine is loaded at a
time; the logits of the reference wait in a file meanwhile.
"""

from __future__ import annotations

import itertools
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
SPANS = (0, 128, 512, 2048, 8192, 32_768, 131_072)
"""Positions at which another part of a window begins: what a cache costs grows with the keys that
are read from it."""


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
class Measured:
    """exp of the mean loss in nats over `n_tokens` tokens. `divergence`: from the reference, None
    for that itself."""

    perplexity: float
    n_tokens: int
    divergence: Divergence | None


@dataclass(frozen=True, slots=True)
class Perplexity(Measured):
    """Of one storage type: of all tokens, and, as `spans`, of those foretold after positions
    [first, end) of their windows."""

    dtype: str
    spans: tuple[tuple[int, int, Measured], ...]


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
    pieces = (_compared(window, _foretelling(engine, window), None) for window in cut)
    return _together([*itertools.chain.from_iterable(pieces)]).perplexity


def perplexities(
    load: Callable[[str], Engine],
    cut: Sequence[Window],
    dtypes: Sequence[str],
    reference: str = REFERENCE,
) -> Iterator[Perplexity]:
    """Of the reference and then of each other type, as they are measured. `load` gives an engine of
    a storage type, which is closed after it."""
    with tempfile.TemporaryFile() as kept:
        for dtype in dict.fromkeys((reference, *dtypes)):
            engine = load(dtype)
            try:
                yield _measure(engine, dtype, cut, kept, writes=dtype == reference)
            finally:
                engine.close()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some positions of a window, all of one span."""

    span: int
    n: int
    loss: float
    divergence: Divergence | None


def _measure(
    engine: Engine, dtype: str, cut: Sequence[Window], kept: IO[bytes], *, writes: bool
) -> Perplexity:
    """Of one engine. `kept`: written with the logits of the reference, and read for all others."""
    kept.seek(0)
    pieces: list[_Piece] = []
    for window in cut:
        logits = _foretelling(engine, window)
        reference = None
        if writes:
            kept.write(np.ascontiguousarray(logits, np.float32).tobytes())
        else:
            reference = np.frombuffer(kept.read(4 * logits.size), np.float32).reshape(logits.shape)
        pieces += _compared(window, logits, reference)
    whole, end = _together(pieces), max(len(window.ids) for window in cut) - 1
    edges = [at for at in SPANS if at < end]
    spans = [
        (first, last, _together([piece for piece in pieces if piece.span == first]))
        for first, last in itertools.pairwise([*edges, end])
        if any(piece.span == first for piece in pieces)
    ]
    return Perplexity(
        whole.perplexity, whole.n_tokens, whole.divergence, dtype=dtype, spans=tuple(spans)
    )


def _foretelling(engine: Engine, window: Window) -> Floats:
    """Logits (n_counted, vocab_size) of the tokens that are counted."""
    return engine.logits(list(window.ids))[window.first - 1 : -1]


def _compared(window: Window, logits: Floats, reference: Floats | None) -> Iterator[_Piece]:
    """A few positions at a time."""
    ids, first = window.ids[window.first :], window.first - 1
    edges = sorted({*range(0, len(ids), PIECE), *(at - first for at in SPANS), len(ids)})
    for begin, end in itertools.pairwise([at for at in edges if 0 <= at <= len(ids)]):
        at = slice(begin, end)
        span = max(edge for edge in SPANS if edge <= begin + first)
        apart = None if reference is None else Divergence.of(reference[at], logits[at])
        yield _Piece(span, end - begin, mean_loss(logits[at], ids[at]), apart)


def _together(pieces: Sequence[_Piece]) -> Measured:
    n_tokens = sum(piece.n for piece in pieces)
    loss = sum(piece.n * piece.loss for piece in pieces) / n_tokens
    parts = [(piece.n, piece.divergence) for piece in pieces if piece.divergence is not None]
    return Measured(math.exp(loss), n_tokens, Divergence.mean(parts) if parts else None)
