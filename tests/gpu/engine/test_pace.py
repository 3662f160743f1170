"""Questions and streams share the device's time as `Pace` promises, by a clock that the test
sets."""

from __future__ import annotations

import pytest

from gpu.engine.pace import LATEST, PIECE_TOKENS, Pace

STEP = 0.010


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def stream(pace: Pace, clock: Clock, seconds: float = STEP) -> None:
    """A token of a stream."""
    clock.now += seconds
    pace.tick(True, stepped=True)


def writing() -> tuple[Pace, Clock]:
    """While somebody writes a token every `STEP`."""
    clock = Clock()
    pace = Pace(clock)
    pace.tick(True, stepped=False)
    for _ in range(LATEST):
        stream(pace, clock)
    return pace, clock


def work(pace: Pace, clock: Clock, cost: float, kind: str = "losses", most: int = 8) -> int:
    """A piece whose rows take `cost` seconds each beside the same for the piece; its rows."""
    with pace.piece():
        n = pace.rows(kind, most)
        clock.now += cost * (1 + n)
    return n


@pytest.mark.parametrize("seconds", [0.001, 0.008, 0.05, 3.0])
def test_streams_get_as_much_time_as_questions(seconds: float) -> None:
    pace, clock = writing()
    streams = questions = 0.0
    while streams + questions < 60 * max(STEP, seconds):
        if pace.may_work:
            with pace.piece():
                clock.now += seconds
            questions += seconds
        stream(pace, clock)
        streams += STEP
    assert questions <= streams + seconds
    assert questions >= 0.5 * min(streams, streams / STEP * seconds)


def test_time_is_not_saved_up() -> None:
    """An hour without questions does not pay for a minute of them."""
    pace, clock = writing()
    for _ in range(1000):
        stream(pace, clock)
    with pace.piece():
        clock.now += 5 * STEP
    assert not pace.may_work
    for _ in range(5):
        assert not pace.may_work
        stream(pace, clock)
    assert pace.may_work


def test_questions_have_all_the_time_while_nobody_writes() -> None:
    pace, clock = writing()
    work(pace, clock, 10.0)
    assert not pace.may_work
    pace.tick(False, stepped=False)
    for _ in range(3):
        assert pace.may_work
        assert work(pace, clock, 10.0) == 8
    stream(pace, clock)
    assert pace.may_work  # what came before is nobody's debt
    assert work(pace, clock, 10.0) == 1


def test_the_first_piece_beside_a_stream_is_one_row() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.tick(True, stepped=False)
    with pace.piece():
        assert pace.rows("losses", 8) == 1


@pytest.mark.parametrize(
    ("cost", "n"), [(STEP / 100, 8), (STEP / 10, 8), (STEP / 6, 4), (STEP / 4, 2), (STEP, 1)]
)
def test_pieces_grow_as_far_as_a_token_takes(cost: float, n: int) -> None:
    pace, clock = writing()
    sizes = []
    for _ in range(40):
        sizes.append(work(pace, clock, cost))
        while not pace.may_work:
            stream(pace, clock)
    assert sizes[-1] == n
    assert sizes == sorted(sizes[:4]) + sizes[4:]  # small ones first
    if n > 1:
        assert cost * (1 + n) <= PIECE_TOKENS * STEP


def test_a_kind_does_not_learn_from_another() -> None:
    pace, clock = writing()
    for _ in range(10):
        work(pace, clock, STEP / 100, "losses")
    assert work(pace, clock, STEP / 100, "losses") == 8
    assert work(pace, clock, STEP / 100, "fill", 16) == 1


@pytest.mark.parametrize("n", [1, 2, 8])
def test_a_size_that_compiled_when_it_was_timed_is_tried_again(n: int) -> None:
    pace, clock = writing()
    sizes, compiled = [], False
    for _ in range(300):
        with pace.piece():
            sizes.append(pace.rows("losses", 8))
            clock.now += STEP / 100
            if sizes[-1] == n and not compiled:
                compiled = True
                clock.now += 0.5
    assert sizes[-50:] == [8] * 50


def test_a_size_that_takes_too_long_is_not_tried_often() -> None:
    pace, clock = writing()
    tokens, sizes = {1: 0.4, 2: 0.6, 4: 2.0}, []
    for _ in range(400):
        with pace.piece():
            sizes.append(pace.rows("losses", 8))
            clock.now += tokens[sizes[-1]] * STEP
    assert set(sizes[50:]) == {2, 4}
    assert sizes[50:].count(4) < 0.05 * 350
