"""Perplexity and divergence of storage types, on made-up engines and on the bundled model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from app import tale
from gpu import Engine, SamplingParams, perplexities, text_spans
from gpu.analysis.perplexity import TextSpan
from gpu.errors import InvalidRequest
from gpu.load_options import LoadOptions
from gpu.reference.divergence import Divergence, mean_kl, mean_loss, same_top
from gpu.step import Floats


class Made:
    """An engine whose logits follow from the ids: those of f32, plus noise of a given size."""

    def __init__(self, noise: float) -> None:
        self.noise = noise
        self.closed = False

    def logits(self, ids: list[int]) -> Floats:
        base = np.random.default_rng(sum(ids)).normal(size=(len(ids), 11))
        return (base + self.noise * np.cos(np.arange(11))).astype(np.float32)

    def close(self) -> None:
        self.closed = True


class Letters:
    """A token per letter, and `begin` before a text."""

    def __init__(self, *begin: int) -> None:
        self.begin = begin

    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]:
        return [*(self.begin if bos else ()), *(ord(c) % 10 for c in text)]


def test_the_loss_is_that_of_the_actual_tokens() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32))
    assert mean_loss(logits, [1, 2]) == pytest.approx(-(math.log(0.25) + math.log(0.8)) / 2)


def test_divergences_of_parts_combine_to_that_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(7, 5)).astype(np.float32) for _ in range(2))
    parts = [(2, Divergence.of(a[:2], b[:2])), (5, Divergence.of(a[2:], b[2:]))]
    whole = Divergence.mean(parts)
    assert whole.kl == pytest.approx(mean_kl(a, b))
    assert whole.same_top == pytest.approx(same_top(a, b))


def test_spans_begin_with_bos_and_count_the_rest() -> None:
    text = "abcdefgh"
    ids = Letters().encode(text)
    assert text_spans(Letters(), text, 3, 100) == [
        TextSpan(tuple(ids[0:3]), 1),
        TextSpan(tuple(ids[3:6]), 1),
        TextSpan(tuple(ids[6:8]), 1),
    ]
    assert text_spans(Letters(10), text, 4, 7) == [
        TextSpan((10, *ids[0:3]), 1),
        TextSpan((10, *ids[3:6]), 1),
        TextSpan((10, ids[6]), 1),
    ]
    assert [w.n_counted for w in text_spans(Letters(), text, 7, 100)] == [6], "a lone last one"


@pytest.mark.parametrize(("text", "size"), [("", 8), ("a", 8), ("abc", 1)])
def test_texts_and_spans_that_are_too_short_are_refused(text: str, size: int) -> None:
    with pytest.raises(InvalidRequest, match="too"):
        text_spans(Letters(), text, size, 100)


def test_perplexity_is_that_of_all_positions_of_all_spans() -> None:
    """More than one chunk of positions per span, and spans of different lengths."""
    text = "the quick brown fox jumps over the lazy dog " * 5
    cut = text_spans(Letters(10), text, 101, 10_000)
    engines = {"f32": Made(0.0), "q4": Made(0.5)}
    f32, q4 = perplexities(engines.__getitem__, cut, ["q4", "f32"])
    want = np.concatenate([engines["f32"].logits(list(w.ids))[:-1] for w in cut])
    got = np.concatenate([engines["q4"].logits(list(w.ids))[:-1] for w in cut])
    came = [id for w in cut for id in w.ids[1:]]
    assert (f32.dtype, q4.dtype) == ("f32", "q4")
    assert f32.n_tokens == q4.n_tokens == len(came) == len(text)
    assert f32.perplexity == pytest.approx(math.exp(mean_loss(want, came)))
    assert q4.perplexity == pytest.approx(math.exp(mean_loss(got, came)))
    assert f32.divergence is None
    assert q4.divergence is not None
    assert q4.divergence.kl == pytest.approx(mean_kl(want, got))
    assert q4.divergence.same_top == pytest.approx(same_top(want, got))
    assert all(engine.closed for engine in engines.values())


def test_results_by_position() -> None:
    """One span of 300 tokens, one of 100, and one that is too short for the second range of
    positions."""
    text = "abcdefghij" * 41
    cut = text_spans(Letters(10), text, 301, 10_000)
    assert [len(w.ids) for w in cut] == [301, 111]
    engines = {"f16": Made(0.0), "q8": Made(0.5)}
    f16, q8 = perplexities(engines.__getitem__, cut, ["q8"], reference="f16")
    assert [(first, end) for first, end, _ in q8.by_position] == [(0, 128), (128, 300)]
    assert f16.divergence is None
    for (first, end, part), (_, _, before) in zip(q8.by_position, f16.by_position, strict=True):
        want, got = (
            np.concatenate([e.logits(list(w.ids))[first : min(end, len(w.ids) - 1)] for w in cut])
            for e in (engines["f16"], engines["q8"])
        )
        came = [id for w in cut for id in w.ids[first + 1 : end + 1]]
        assert part.n_tokens == before.n_tokens == len(came)
        assert part.perplexity == pytest.approx(math.exp(mean_loss(got, came)))
        assert before.perplexity == pytest.approx(math.exp(mean_loss(want, came)))
        assert part.divergence is not None
        assert part.divergence.kl == pytest.approx(mean_kl(want, got))
    assert sum(part.n_tokens for *_, part in q8.by_position) == q8.n_tokens == 410


def test_a_span_without_bos_counts_from_its_second_token() -> None:
    cut = text_spans(Letters(), "abcdefghij" * 20, 200, 10_000)
    (found,) = perplexities(lambda dtype: Made(0.0), cut, [])
    assert [(first, end, part.n_tokens) for first, end, part in found.by_position] == [
        (0, 128, 128),
        (128, 199, 71),
    ]


def test_an_engine_is_closed_when_measuring_fails() -> None:
    engine = Made(0.0)
    engine.logits = lambda ids: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(ZeroDivisionError):
        list(perplexities(lambda dtype: engine, [TextSpan((1, 2), 1)], []))
    assert engine.closed


def test_perplexity_of_the_bundled_model() -> None:
    """Its own text has a low perplexity, and fewer bits increase it."""

    def load(dtype: str) -> Any:
        return Engine.load(
            tale.model_dir(), LoadOptions(dtype=dtype, backend="torch", context=128, slots=1)
        )

    writer = load("f32")
    begin = writer.tokenizer.encode("Once upon a time")
    run = writer.generate(begin, SamplingParams(temperature=0, max_tokens=110))
    text = "Once upon a time" + "".join(token.text for token in run)
    writer.close()
    cut = text_spans(writer.tokenizer, text, 64, 100)

    f32, f16, q4 = perplexities(load, cut, ["f16", "q4"])
    assert 1 < f32.perplexity < 10
    assert f16.perplexity == pytest.approx(f32.perplexity, rel=0.01)
    assert f16.divergence is not None
    assert q4.divergence is not None
    assert 0 < f16.divergence.kl < 1e-4 < q4.divergence.kl < 0.2
    assert q4.divergence.same_top < f16.divergence.same_top <= 1
