"""Tasks that submit run in order on one thread, and an error of theirs reaches who waits."""

from __future__ import annotations

import gc
from threading import Event, Thread, get_ident

import pytest

from gpu.webgpu.submissions import Submissions


def test_tasks_run_in_order_on_one_other_thread() -> None:
    submissions, ran = Submissions(), list[tuple[int, int]]()
    for i in range(50):
        submissions.post(lambda i=i: ran.append((i, get_ident())))  # type: ignore[misc]
    submissions.settle()
    assert [i for i, _ in ran] == list(range(50))
    assert len({thread for _, thread in ran} | {get_ident()}) == 2
    submissions.close()


def test_settling_waits_for_the_tasks_so_far() -> None:
    submissions, may_run = Submissions(), Event()
    done = submissions.post(lambda: may_run.wait() and None)
    Thread(target=may_run.set).start()
    submissions.settle()
    assert done.done()
    submissions.settle()  # there are none
    submissions.close()


def test_after_an_error_nothing_is_run() -> None:
    """A step must not be submitted without those before it."""
    submissions, ran = Submissions(), list[str]()

    def fail() -> None:
        raise RuntimeError("lost")

    first, second, third = map(submissions.post, (lambda: ran.append("a"), fail, fail))
    last = submissions.post(lambda: ran.append("b"))
    assert first.result() is None
    for failed in (second, third, last):
        with pytest.raises(RuntimeError, match="lost"):
            failed.result()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="lost"):
            submissions.settle()
    assert ran == ["a"]
    submissions.close()


def test_closing_waits_for_the_tasks_and_ends_the_thread() -> None:
    submissions, ran = Submissions(), list[int]()
    submissions.close()  # before there is a thread
    for i in range(9):
        submissions.post(lambda i=i: ran.append(i))  # type: ignore[misc]
    thread = submissions._thread
    assert thread is not None
    submissions.close()
    assert ran == list(range(9))
    assert not thread.is_alive()


def test_a_thread_ends_with_what_posts_to_it() -> None:
    submissions = Submissions()
    submissions.post(lambda: None)
    thread = submissions._thread
    assert thread is not None
    del submissions
    gc.collect()
    thread.join()
