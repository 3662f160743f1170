"""The model that questions are about, and the checks that several of them share."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from gpu.engine.recompute import Recomputer
from gpu.errors import InvalidRequest
from gpu.inspection.requests import MAX_ANSWER_BYTES, MAX_TOP, Answer
from gpu.interventions.active import InterventionSchedule
from gpu.runner import Runner

AnswerSteps = Generator[None, None, Answer]
"""Yields after each piece of work; its value is the answer."""


@dataclass(frozen=True, slots=True)
class QuestionedModel:
    """A loaded model that computes rows of texts again.

    end_ids  ids that end a text
    """

    runner: Runner
    recomputer: Recomputer
    end_ids: tuple[int, ...]

    def pieces(
        self, first: int, end: int, schedule: InterventionSchedule, kind: str, *most: int
    ) -> Iterator[tuple[int, int]]:
        """Yield first and end of the pieces of first … end − 1, each under the same interventions.
        `kind`, `most`: see `Recomputer.piece_rows`, asked when a piece begins."""
        while first < end:
            size = self.recomputer.piece_rows(kind, *most)
            at = schedule.next_change(first, min(first + size, end))
            yield first, at
            first = at

    def check_ids(self, ids: list[int], param: str) -> None:
        vocab = self.runner.config.vocab_size
        for id in ids:
            if not 0 <= id < vocab:
                raise InvalidRequest(
                    f"{param} should be from 0 to {vocab - 1}, but got {id}", param
                )

    def check_place(self, ids: list[int], position: int, param: str = "position") -> None:
        self.check_ids(ids, "ids")
        context = self.runner.limits.context
        if len(ids) > context:
            raise InvalidRequest(
                f"{len(ids)} ids are more than the context of {context} tokens", "ids"
            )
        if not ids:
            raise InvalidRequest("ids are missing; give those of the run", "ids")
        if not 0 <= position < len(ids):
            raise InvalidRequest(
                f"{param} should be from 0 to {len(ids) - 1}, but is {position}", param
            )

    def check_bytes(self, n_weights: int) -> None:
        """Raise InvalidRequest if an answer of `n_weights` weights per head is too large."""
        config = self.runner.config
        n_bytes = 4 * n_weights * config.n_layers * config.n_heads
        if n_bytes > MAX_ANSWER_BYTES:
            most = MAX_ANSWER_BYTES // (4 * config.n_layers * config.n_heads)
            raise InvalidRequest(
                f"the answer would have {n_bytes:,} bytes for the attention of {n_weights} tokens; "
                f"ask about {most} tokens or fewer",
                "position",
            )


def check_top(top: int) -> None:
    if not 1 <= top <= MAX_TOP:
        raise InvalidRequest(f"top should be from 1 to {MAX_TOP}, but is {top}", "top")
