"""Questions and streams share the device's time as `QuestionBudget` promises, by a clock that the
test sets."""

from __future__ import annotations

from collections.abc import Generator
from itertools import accumulate
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from gpu.engine.question_budget import LATEST, PIECE_TOKENS, QuestionBudget
from gpu.engine.questions.encode import ROWS_BESIDE_RUNS, answer
from gpu.inspection.requests import Encode
from gpu.runner import Encoder
from gpu.step import Floats

STEP = 0.010


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def stream(budget: QuestionBudget, clock: Clock, seconds: float = STEP) -> None:
    """A token of a stream."""
    clock.now += seconds
    budget.tick(True, stepped=True)


def writing() -> tuple[QuestionBudget, Clock]:
    """While somebody writes a token every `STEP`."""
    clock = Clock()
    budget = QuestionBudget(clock)
    budget.tick(True, stepped=False)
    for _ in range(LATEST):
        stream(budget, clock)
    return budget, clock


def work(
    budget: QuestionBudget, clock: Clock, cost: float, kind: str = "losses", most: int = 8
) -> int:
    """A piece whose rows take `cost` seconds each beside the same for the piece; its rows."""
    with budget.piece():
        n = budget.rows(kind, most)
        clock.now += cost * (1 + n)
    return n


@pytest.mark.parametrize("seconds", [0.001, 0.008, 0.05, 3.0])
def test_streams_get_as_much_time_as_questions(seconds: float) -> None:
    budget, clock = writing()
    streams = questions = 0.0
    while streams + questions < 60 * max(STEP, seconds):
        if budget.may_work:
            with budget.piece():
                clock.now += seconds
            questions += seconds
        stream(budget, clock)
        streams += STEP
    assert questions <= streams + seconds
    assert questions >= 0.5 * min(streams, streams / STEP * seconds)


def test_time_is_not_saved_up() -> None:
    """An hour without questions does not pay for a minute of them."""
    budget, clock = writing()
    for _ in range(1000):
        stream(budget, clock)
    with budget.piece():
        clock.now += 5 * STEP
    assert not budget.may_work
    for _ in range(5):
        assert not budget.may_work
        stream(budget, clock)
    assert budget.may_work


def test_questions_have_all_the_time_while_nobody_writes() -> None:
    budget, clock = writing()
    work(budget, clock, 10.0)
    assert not budget.may_work
    budget.tick(False, stepped=False)
    for _ in range(3):
        assert budget.may_work
        assert work(budget, clock, 10.0) == 8
    stream(budget, clock)
    assert budget.may_work  # what came before is nobody's debt
    assert work(budget, clock, 10.0) == 1


def test_the_first_piece_beside_a_stream_is_one_row() -> None:
    clock = Clock()
    budget = QuestionBudget(clock)
    budget.tick(True, stepped=False)
    with budget.piece():
        assert budget.rows("losses", 8) == 1


@pytest.mark.parametrize(
    ("cost", "n"), [(STEP / 100, 8), (STEP / 10, 8), (STEP / 6, 4), (STEP / 4, 2), (STEP, 1)]
)
def test_pieces_grow_as_far_as_a_token_takes(cost: float, n: int) -> None:
    budget, clock = writing()
    sizes = []
    for _ in range(40):
        sizes.append(work(budget, clock, cost))
        while not budget.may_work:
            stream(budget, clock)
    assert sizes[-1] == n
    assert sizes == sorted(sizes[:4]) + sizes[4:]  # small ones first
    if n > 1:
        assert cost * (1 + n) <= PIECE_TOKENS * STEP


def test_a_kind_does_not_learn_from_another() -> None:
    budget, clock = writing()
    for _ in range(10):
        work(budget, clock, STEP / 100, "losses")
    assert work(budget, clock, STEP / 100, "losses") == 8
    assert work(budget, clock, STEP / 100, "fill", 16) == 1


@pytest.mark.parametrize("n", [1, 2, 8])
def test_a_size_that_compiled_when_it_was_timed_is_tried_again(n: int) -> None:
    budget, clock = writing()
    sizes, compiled = [], False
    for _ in range(300):
        with budget.piece():
            sizes.append(budget.rows("losses", 8))
            clock.now += STEP / 100
            if sizes[-1] == n and not compiled:
                compiled = True
                clock.now += 0.5
    assert sizes[-50:] == [8] * 50


def test_a_size_that_takes_too_long_is_not_tried_often() -> None:
    budget, clock = writing()
    tokens, sizes = {1: 0.4, 2: 0.6, 4: 2.0}, []
    for _ in range(400):
        with budget.piece():
            sizes.append(budget.rows("losses", 8))
            clock.now += tokens[sizes[-1]] * STEP
    assert set(sizes[50:]) == {2, 4}
    assert sizes[50:].count(4) < 0.05 * 350


@pytest.mark.parametrize("seconds", [0.001, 0.008, 0.3])
def test_a_smaller_share_takes_at_most_so_much(seconds: float) -> None:
    budget, clock = writing()
    streams = questions = 0.0
    while streams + questions < 200 * max(STEP, seconds):
        if budget.may_work:
            with budget.piece():
                budget.set_share(0.2)
                clock.now += seconds
            questions += seconds
        stream(budget, clock)
        streams += STEP
    assert questions <= 0.2 * streams + seconds
    with budget.piece():  # one that says nothing has the usual share again
        clock.now += STEP
    for _ in range(1 + round(5 * seconds / STEP) + 1):
        stream(budget, clock)
    assert budget.may_work


class SlowEncoder:
    """Encoder of texts whose passes are four pieces of `seconds` each. `passes`: tokens of each."""

    config = SimpleNamespace(vocab_size=100)
    max_tokens = 512

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.passes: list[int] = []

    def n_fitting(self, lengths: list[int], most_rows: int) -> int:
        return max(1, sum(end <= most_rows for end in accumulate(lengths)))

    def vectors(self, texts: list[list[int]], *, in_pieces: bool) -> Generator[None, None, Floats]:
        assert in_pieces
        self.passes.append(sum(map(len, texts)))
        for _ in range(4):
            self._clock.now += self._seconds
            yield
        return np.zeros((len(texts), 8), np.float32)


@pytest.mark.parametrize("seconds", [0.001, 0.008, 0.3])
def test_indexing_leaves_streams_nine_tenths_of_the_time(seconds: float) -> None:
    """Each piece of each pass is charged, and a pass is short while somebody writes."""
    budget, clock = writing()
    encoder = SlowEncoder(clock, seconds)
    texts = [[1] * (1 + i % 90) for i in range(60)]
    indexing = answer(Encode(texts), cast(Encoder, encoder), budget)
    streams, began = 0.0, clock.now
    found = None
    while found is None:
        if budget.may_work:
            with budget.piece():
                try:
                    next(indexing)
                except StopIteration as done:
                    found = done.value
        stream(budget, clock)
        streams += STEP
    pieces = clock.now - began - streams
    assert pieces == pytest.approx(4 * len(encoder.passes) * seconds)
    assert pieces <= 0.1 * streams + seconds
    assert sum(encoder.passes) == sum(map(len, texts))
    assert sum(n > ROWS_BESIDE_RUNS for n in encoder.passes) == sum(
        len(text) > ROWS_BESIDE_RUNS for text in texts
    )
