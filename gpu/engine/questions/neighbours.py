"""Neighbours: the tokens whose vectors in the embedding matrix are nearest to those of others.

The matrix is read from the device in pieces: all of it as float32 may be hundreds of megabytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu.engine.questions.model import AnswerSteps, QuestionedModel, check_top
from gpu.errors import InvalidRequest
from gpu.inspection.requests import MAX_COMPARED, Answer, Array, Neighbours
from gpu.step import Floats

ROWS = 4096
"""Rows of the embedding matrix of a piece."""

Array64 = npt.NDArray[np.float64]


def check(question: Neighbours, model: QuestionedModel) -> None:
    model.check_ids(question.ids, "ids")
    check_top(question.top)
    if not 1 <= len(question.ids) <= MAX_COMPARED:
        raise InvalidRequest(
            f"expected 1 to {MAX_COMPARED} ids, but got {len(question.ids)}", "ids"
        )


def answer(question: Neighbours, model: QuestionedModel) -> AnswerSteps:
    runner = model.runner
    vocab_size = runner.config.vocab_size
    tokens = np.concatenate([runner.embedding_rows(id, 1) for id in question.ids])
    cosines = np.empty((len(tokens), vocab_size), np.float32)
    for first in range(0, vocab_size, ROWS):
        yield
        rows = runner.embedding_rows(first, min(ROWS, vocab_size - first))
        cosines[:, first : first + len(rows)] = cosines_of(tokens, rows)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, : question.top]
    top = np.take_along_axis(cosines, nearest, axis=1)
    return Answer({}, (Array.of("ids", nearest), Array.of("cosines", top)))


def cosines_of(vectors: Floats, rows: Floats) -> Array64:
    """Return the cosine of each vector with each row; 0 for a vector of zeros."""
    lengths = np.outer(np.linalg.norm(vectors, axis=1), np.linalg.norm(rows, axis=1))
    cosines: Array64 = vectors @ rows.T.astype(np.float64) / np.maximum(lengths, 1e-30)
    return cosines
