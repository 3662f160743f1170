"""Beam search for the most likely continuations of a text (Graves 2012, "Sequence Transduction with
Recurrent Neural Networks"; Sutskever et al. 2014, "Sequence to Sequence Learning").

At every step each continuation in the beam is extended by every token, and the `width` best of all
are kept. A finished continuation stays as it is while it is among them. Host logic only: the caller
provides the model.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from gpu.errors import InvalidRequest
from gpu.inspection.readings import most_likely
from gpu.inspection.requests import (
    MAX_BEAM_DEPTH,
    MAX_BEAM_WIDTH,
    MAX_LENGTH_PENALTY,
    Answer,
    Array,
    Beam,
)
from gpu.reference.softmax import log_softmax
from gpu.step import Floats

LogitsAfter = Callable[[list[int]], Generator[None, None, Floats]]
"""Computes the float32 logits (1, vocab_size) after the last of some ids, in pieces."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A continuation. `logprobs[i]`: natural log of the probability of ids[i] after those before
    it."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    ended: bool = False

    def score(self, length_penalty: float) -> float:
        """Return the log-probability over length to the power of `length_penalty`: 0 favours the
        most likely text, 1 the highest mean over its tokens."""
        return sum(self.logprobs) / float(max(1, len(self.ids)) ** length_penalty)

    def extended(self, logits: Floats, width: int, end_ids: Sequence[int]) -> list[Hypothesis]:
        """Return this continuation extended by each of the `width` most likely tokens of logits (1,
        vocab_size). More cannot be among the best of all."""
        logs = log_softmax(logits[0])
        return [
            Hypothesis((*self.ids, id), (*self.logprobs, float(logs[id])), id in end_ids)
            for id in most_likely(logs, width).tolist()
        ]


def search(
    ids: list[int],
    logits_after: LogitsAfter,
    *,
    width: int,
    depth: int,
    end_ids: Sequence[int] = (),
    length_penalty: float = 0.0,
) -> Generator[None, None, list[Hypothesis]]:
    """Return the `width` best continuations of `ids` by up to `depth` tokens, best first; of
    equals, the one whose beginning was better, then the lower id. Yields after each row.
    """
    beam = [Hypothesis()]
    for _ in range(depth):
        if all(hypothesis.ended for hypothesis in beam):
            break
        others: list[Hypothesis] = []
        for hypothesis in beam:
            if hypothesis.ended:
                others.append(hypothesis)
                continue
            logits = yield from logits_after([*ids, *hypothesis.ids])
            others += hypothesis.extended(logits, width, end_ids)
            yield
        beam = sorted(others, key=lambda one: -one.score(length_penalty))[:width]
    return beam


def beam_answer(
    question: Beam, logits_after: LogitsAfter, end_ids: Sequence[int], context: int
) -> Generator[None, None, Answer]:
    """Return the arrays of `gpu.inspection.requests.Beam`. `context`: tokens of the longest text.

    Raises InvalidRequest for a beam that is too wide, too deep, or longer than the context.
    """
    _check("width", question.width, 1, MAX_BEAM_WIDTH)
    _check("depth", question.depth, 1, MAX_BEAM_DEPTH)
    _check("length_penalty", question.length_penalty, 0, MAX_LENGTH_PENALTY)
    if len(question.ids) + question.depth > context:
        raise InvalidRequest(
            f"{len(question.ids)} ids and {question.depth} more do not fit the context of "
            f"{context} tokens; ask for a depth of {context - len(question.ids)} or less",
            "depth",
        )
    return _searched(question, logits_after, end_ids)


def _searched(
    question: Beam, logits_after: LogitsAfter, end_ids: Sequence[int]
) -> Generator[None, None, Answer]:
    found = yield from search(
        question.ids,
        logits_after,
        width=question.width,
        depth=question.depth,
        end_ids=end_ids,
        length_penalty=question.length_penalty,
    )
    ids = np.zeros((len(found), question.depth), np.uint32)
    logprobs = np.zeros((len(found), question.depth), np.float32)
    for i, one in enumerate(found):
        ids[i, : len(one.ids)] = one.ids
        logprobs[i, : len(one.ids)] = one.logprobs
    arrays = {
        "ids": ids,
        "logprobs": logprobs,
        "lengths": np.array([len(one.ids) for one in found]),
        "ended": np.array([int(one.ended) for one in found]),
    }
    return Answer({}, tuple(Array.of(name, values) for name, values in arrays.items()))


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"{name} should be from {least} to {most}, but is {value}", name)
