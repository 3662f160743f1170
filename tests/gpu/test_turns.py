"""Work in pieces: turns, failures, and those who do not wait any more."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future

import pytest

from gpu.engine.turns import Turns, unless
from gpu.errors import EngineClosed, QueueFull


class Work:
    """`n` pieces, then a value or a failure."""

    def __init__(self, log: list[str], name: str, n: int, failure: Exception | None = None) -> None:
        self.log, self.name, self.n, self.failure = log, name, n, failure
        self.closed = False

    def pieces(self) -> Generator[None, None, str]:
        try:
            for _ in range(self.n):
                self.log.append(self.name)
                yield
        finally:
            self.closed = True
        if self.failure:
            raise self.failure
        return self.name


def run(turns: Turns) -> None:
    while turns:
        turns.advance()


def test_pieces_take_turns() -> None:
    log: list[str] = []
    turns, values = Turns(), [Future[str](), Future[str]()]
    for name, n, value in zip("ab", (3, 1), values, strict=True):
        turns.add(Work(log, name, n).pieces(), value)
    run(turns)
    assert log == ["a", "b", "a", "a"]
    assert [value.result(0) for value in values] == ["a", "b"]


def test_a_refusal_is_told_and_others_go_on() -> None:
    turns, refused, other = Turns(), Future[str](), Future[str]()
    turns.add(Work([], "a", 1, QueueFull("no room")).pieces(), refused)
    turns.add(Work([], "b", 2).pieces(), other)
    run(turns)
    assert isinstance(refused.exception(0), QueueFull)
    assert other.result(0) == "b"


def test_what_is_no_refusal_is_raised_as_well() -> None:
    turns, value = Turns(), Future[str]()
    turns.add(Work([], "a", 0, RuntimeError("device lost")).pieces(), value)
    with pytest.raises(RuntimeError, match="device lost"):
        turns.advance()
    assert isinstance(value.exception(0), RuntimeError)


@pytest.mark.parametrize("n_before", [0, 1, 2])
def test_a_cancelled_value_ends_its_work(n_before: int) -> None:
    work = Work([], "a", 2)
    turns, value = Turns(), Future[str]()
    turns.add(work.pieces(), value)
    for _ in range(n_before):
        turns.advance()
    value.cancel()
    run(turns)
    assert value.cancelled()
    assert len(work.log) == n_before
    assert work.closed or n_before == 0


def test_the_end_refuses_all_but_the_cancelled() -> None:
    turns, waiting, left = Turns(), Future[str](), Future[str]()
    turns.add(Work([], "a", 5).pieces(), waiting)
    turns.add(Work([], "b", 5).pieces(), left)
    left.cancel()
    turns.refuse(EngineClosed("closed"))
    assert isinstance(waiting.exception(0), EngineClosed)
    assert not turns


@pytest.mark.parametrize(("over_after", "value"), [(9, "a"), (2, None), (0, None)])
def test_work_ends_with_what_it_is_for(over_after: int, value: str | None) -> None:
    log: list[str] = []
    work, turns, answer = Work(log, "a", 3), Turns(), Future[str | None]()
    turns.add(unless(lambda: len(log) > over_after - 1, work.pieces()), answer)
    run(turns)
    assert answer.result(0) == value
    assert len(log) == min(3, over_after)
    assert work.closed or not log
