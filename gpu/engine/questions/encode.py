"""Encode: vectors of texts by the embedding model beside the one that writes.

A text of an encoder is computed as a whole, so pieces are dispatches of a pass, and while runs
write a pass has few texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpu.engine.question_budget import QuestionBudget
from gpu.engine.questions.model import AnswerSteps
from gpu.errors import InvalidRequest
from gpu.inspection.requests import MAX_ENCODED, Answer, Array, Encode
from gpu.step import MAX_ROWS

if TYPE_CHECKING:
    from gpu.runners.encoder import Encoder

ROWS_BESIDE_RUNS = 64
"""Most tokens of a pass while runs write, unless a text has more."""
SHARE = 0.1
"""Time for encoding while runs write, relative to theirs: who indexes many texts can wait."""


def check(question: Encode, encoder: Encoder | None) -> Encoder:
    """Return the encoder. Raises InvalidRequest if there is none, or for texts that it cannot
    encode."""
    if encoder is None:
        raise InvalidRequest(
            "there is no embedding model; start the server with --embedding-model", "kind"
        )
    if not 1 <= len(question.texts) <= MAX_ENCODED:
        raise InvalidRequest(
            f"expected 1 to {MAX_ENCODED} texts, but got {len(question.texts)}", "texts"
        )
    vocab = encoder.config.vocab_size
    for i, ids in enumerate(question.texts):
        if not 1 <= len(ids) <= encoder.max_tokens:
            raise InvalidRequest(
                f"expected 1 to {encoder.max_tokens} ids, but got {len(ids)}", f"texts[{i}]"
            )
        if not 0 <= min(ids) <= max(ids) < vocab:
            raise InvalidRequest(f"expected ids from 0 to {vocab - 1}", f"texts[{i}]")
    return encoder


def answer(question: Encode, encoder: Encoder, budget: QuestionBudget) -> AnswerSteps:
    texts, found = question.texts, []
    while texts:
        writing = budget.writing
        most = ROWS_BESIDE_RUNS if writing else MAX_ROWS
        n = encoder.n_fitting([len(ids) for ids in texts], most)
        pieces = encoder.vectors(texts[:n], in_pieces=writing)
        while True:
            budget.set_share(SHARE)
            try:
                next(pieces)
            except StopIteration as done:
                found.append(done.value)
                break
            yield
        texts = texts[n:]
    return Answer({}, (Array.of("vectors", np.concatenate(found)),))
