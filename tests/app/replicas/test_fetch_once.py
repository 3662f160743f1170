"""Several engines of one model: its files are fetched once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.models.transfer import Cancelled, Transfer
from app.replicas.fetch_once import FetchOnce
from gpu import EngineError


def never() -> bool:
    return False


def ignore(transfer: Transfer) -> None:
    """Take no notice of the progress."""


def test_the_others_wait_for_the_first() -> None:
    began, may_end = threading.Event(), threading.Event()
    n_fetched = []

    def fetch(tell: Callable[[Transfer], None], stopped: Callable[[], bool]) -> None:
        began.set()
        assert may_end.wait(20)
        n_fetched.append(1)

    once = FetchOnce(fetch)
    with ThreadPoolExecutor(3) as pool:
        engines = [pool.submit(once, ignore, never) for _ in range(3)]
        assert began.wait(20)
        assert not any(engine.done() for engine in engines)
        with pytest.raises(Cancelled):
            once(ignore, lambda: True)
        may_end.set()
        for engine in engines:
            engine.result(20)
    assert n_fetched == [1]


def test_a_failure_is_told_to_each_and_may_be_tried_again() -> None:
    ends: list[EngineError | None] = [EngineError("no network"), None]

    def fetch(tell: Callable[[Transfer], None], stopped: Callable[[], bool]) -> None:
        if (error := ends.pop(0)) is not None:
            raise error

    once = FetchOnce(fetch)
    with pytest.raises(EngineError, match="no network"):
        once(ignore, never)
    once(ignore, never)
    once(ignore, never)
    assert ends == []
