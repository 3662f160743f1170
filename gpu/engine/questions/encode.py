"""Encode: vectors of texts by the embedding model, and its attention.

A text of an encoder is computed as a whole, so pieces are dispatches of a pass, and while runs
write a pass has few texts.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import numpy as np

from gpu.engine.question_budget import QuestionBudget
from gpu.engine.questions.model import AnswerSteps
from gpu.errors import InvalidRequest
from gpu.info import EmbeddingInfo
from gpu.inspection.requests import MAX_ENCODED, Answer, Array, Encode, EncoderAttention
from gpu.runner import Encoder
from gpu.step import MAX_ROWS

Result = TypeVar("Result")

ROWS_BESIDE_RUNS = 64
"""Most tokens of a pass while runs write, unless a text has more."""
SHARE = 0.1
"""Time for encoding while runs write, relative to theirs: who indexes many texts can wait."""


def embedding_info(encoder: Encoder) -> EmbeddingInfo:
    return EmbeddingInfo(
        name=encoder.name,
        n_layers=encoder.config.n_layers,
        hidden_size=encoder.config.hidden_size,
        vocab_size=encoder.config.vocab_size,
        max_tokens=encoder.max_tokens,
        pooling=encoder.sentence.pooling,
        normalize=encoder.sentence.normalize,
        n_bytes=encoder.n_bytes,
        similarity=encoder.sentence.similarity,
    )


def check(question: Encode, encoder: Encoder | None) -> Encoder:
    """Return the encoder. Raises InvalidRequest if there is none, or for texts that it cannot
    encode."""
    encoder = _required(encoder)
    if not 1 <= len(question.texts) <= MAX_ENCODED:
        raise InvalidRequest(
            f"expected 1 to {MAX_ENCODED} texts, but got {len(question.texts)}", "texts"
        )
    for i, ids in enumerate(question.texts):
        check_ids(ids, encoder.config.vocab_size, encoder.max_tokens, f"texts[{i}]")
    return encoder


def check_attention(question: EncoderAttention, encoder: Encoder | None) -> Encoder:
    """Return the encoder. Raises InvalidRequest if there is none, or for a text that it cannot
    encode."""
    encoder = _required(encoder)
    check_ids(question.ids, encoder.config.vocab_size, encoder.max_attending, "ids")
    return encoder


def _required(encoder: Encoder | None) -> Encoder:
    if encoder is None:
        raise InvalidRequest(
            "there is no embedding model; start the server with --embedding-model", "kind"
        )
    return encoder


def check_ids(ids: list[int], vocab: int, most: int, param: str) -> None:
    """Raise InvalidRequest for a text that is empty, too long, or has ids beyond the vocabulary."""
    if not 1 <= len(ids) <= most:
        raise InvalidRequest(f"expected 1 to {most} ids, but got {len(ids)}", param)
    if not 0 <= min(ids) <= max(ids) < vocab:
        raise InvalidRequest(f"expected ids from 0 to {vocab - 1}", param)


def answer(question: Encode, encoder: Encoder, budget: QuestionBudget) -> AnswerSteps:
    texts, found = question.texts, []
    while texts:
        writing = budget.writing
        most = ROWS_BESIDE_RUNS if writing else MAX_ROWS
        n = encoder.n_fitting([len(ids) for ids in texts], most)
        vectors = yield from within(budget, encoder.vectors(texts[:n], in_pieces=writing))
        found.append(vectors)
        texts = texts[n:]
    return Answer({}, (Array.of("vectors", np.concatenate(found)),))


def answer_attention(
    question: EncoderAttention, encoder: Encoder, budget: QuestionBudget
) -> AnswerSteps:
    pieces = encoder.attention(question.ids, in_pieces=budget.writing)
    weights = yield from within(budget, pieces)
    return Answer({}, (Array.of("weights", weights),))


def within(
    budget: QuestionBudget, pieces: Generator[None, None, Result]
) -> Generator[None, None, Result]:
    """Run a pass piece by piece within the share of encoding, and return what it computes."""
    while True:
        budget.set_share(SHARE)
        try:
            next(pieces)
        except StopIteration as done:
            found: Result = done.value
            return found
        yield
