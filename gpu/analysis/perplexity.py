"""Perplexity of a text for storage types of the weights or the KV cache, and divergence of the
logits from a reference.

The text is cut into spans of equal length that are read independently: each begins with the
beginning-of-sequence token, if the tokenizer has one, and every later token is predicted from those
before it in its span. (Programs with overlapping spans report lower numbers.) One engine is loaded
at a time; the logits of the reference are stored in a temporary file.
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
CHUNK_POSITIONS = 64
"""Positions compared at a time, which limits the memory for double precision."""
POSITION_EDGES = (0, 128, 512, 2048, 8192, 32_768, 131_072)
"""Positions that divide a span into parts with separate results: the error of a quantised cache
grows with the number of keys read."""


class Engine(Protocol):
    """Interface of the engine under measurement; see `gpu.engine.engine.Engine`."""

    def logits(self, ids: list[int]) -> Floats: ...
    def close(self) -> None: ...


class Encoder(Protocol):
    """Interface of a tokenizer; see `gpu.text.tokenizer.Tokenizer`."""

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Tokens that are read together; those from `first` on are predicted and counted."""

    ids: tuple[int, ...]
    first: int

    @property
    def n_counted(self) -> int:
        return len(self.ids) - self.first


@dataclass(frozen=True, slots=True)
class PerplexityResult:
    """exp of the mean loss in nats over `n_tokens` tokens. `divergence`: from the reference; None
    for the reference."""

    perplexity: float
    n_tokens: int
    divergence: Divergence | None


@dataclass(frozen=True, slots=True)
class Perplexity(PerplexityResult):
    """Result of one storage type for all tokens and, in `by_position`, for those predicted at
    positions [first, end) of their spans."""

    dtype: str
    by_position: tuple[tuple[int, int, PerplexityResult], ...]


def text_spans(tokenizer: Encoder, text: str, size: int, most: int) -> list[TextSpan]:
    """Cut the first `most` tokens of a text into spans of `size` tokens, the last one shorter.

    Raises InvalidRequest for a text too short to predict a token.
    """
    begin = tuple(tokenizer.encode("", specials=False))
    ids = tokenizer.encode(text, bos=False, specials=False)[:most]
    step, first = size - len(begin), max(1, len(begin))
    if step < 2:
        raise InvalidRequest(
            f"a span of {size} tokens is too short; use at least {len(begin) + 2}", "span"
        )
    spans = [TextSpan((*begin, *ids[at : at + step]), first) for at in range(0, len(ids), step)]
    spans = [span for span in spans if span.n_counted > 0]
    if not spans:
        raise InvalidRequest(
            f"the text has {len(ids)} tokens, too few to predict one; use a longer text", "text"
        )
    return spans


def perplexity(engine: Engine, spans: Sequence[TextSpan]) -> float:
    """Return the perplexity of an engine's model on the spans of a text."""
    chunks = (_compare(span, _predicting_logits(engine, span), None) for span in spans)
    return _mean([*itertools.chain.from_iterable(chunks)]).perplexity


def perplexities(
    load: Callable[[str], Engine],
    spans: Sequence[TextSpan],
    dtypes: Sequence[str],
    reference: str = REFERENCE,
) -> Iterator[Perplexity]:
    """Yield the result of the reference and then of each other type, as they are measured.

    `load` returns an engine of a storage type, which is closed afterwards.
    """
    with tempfile.TemporaryFile() as reference_file:
        for dtype in dict.fromkeys((reference, *dtypes)):
            engine = load(dtype)
            try:
                yield _measure(engine, dtype, spans, reference_file, writes=dtype == reference)
            finally:
                engine.close()


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Result of some positions of one span."""

    first_position: int
    n: int
    loss: float
    divergence: Divergence | None


def _measure(
    engine: Engine,
    dtype: str,
    spans: Sequence[TextSpan],
    reference_file: IO[bytes],
    *,
    writes: bool,
) -> Perplexity:
    """Measure one engine. `reference_file`: the reference's logits; written by the reference, read
    by the others."""
    reference_file.seek(0)
    chunks: list[_Chunk] = []
    for span in spans:
        logits = _predicting_logits(engine, span)
        reference = None
        if writes:
            reference_file.write(np.ascontiguousarray(logits, np.float32).tobytes())
        else:
            reference = np.frombuffer(reference_file.read(4 * logits.size), np.float32).reshape(
                logits.shape
            )
        chunks += _compare(span, logits, reference)
    whole, end = _mean(chunks), max(len(span.ids) for span in spans) - 1
    edges = [at for at in POSITION_EDGES if at < end]
    by_position = [
        (first, last, _mean([chunk for chunk in chunks if chunk.first_position == first]))
        for first, last in itertools.pairwise([*edges, end])
        if any(chunk.first_position == first for chunk in chunks)
    ]
    return Perplexity(
        whole.perplexity,
        whole.n_tokens,
        whole.divergence,
        dtype=dtype,
        by_position=tuple(by_position),
    )


def _predicting_logits(engine: Engine, span: TextSpan) -> Floats:
    """Return the logits of the counted tokens, (n_counted, vocab_size)."""
    return engine.logits(list(span.ids))[span.first - 1 : -1]


def _compare(span: TextSpan, logits: Floats, reference: Floats | None) -> Iterator[_Chunk]:
    """Yield results of a few positions at a time."""
    ids, first = span.ids[span.first :], span.first - 1
    edges = sorted(
        {*range(0, len(ids), CHUNK_POSITIONS), *(at - first for at in POSITION_EDGES), len(ids)}
    )
    for begin, end in itertools.pairwise([at for at in edges if 0 <= at <= len(ids)]):
        at = slice(begin, end)
        first_position = max(edge for edge in POSITION_EDGES if edge <= begin + first)
        apart = None if reference is None else Divergence.of(reference[at], logits[at])
        yield _Chunk(first_position, end - begin, mean_loss(logits[at], ids[at]), apart)


def _mean(chunks: Sequence[_Chunk]) -> PerplexityResult:
    n_tokens = sum(chunk.n for chunk in chunks)
    loss = sum(chunk.n * chunk.loss for chunk in chunks) / n_tokens
    parts = [(chunk.n, chunk.divergence) for chunk in chunks if chunk.divergence is not None]
    return PerplexityResult(math.exp(loss), n_tokens, Divergence.mean(parts) if parts else None)
