"""Background tasks run in turns, fail alone, and end when nobody waits any more."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future

import pytest

from gpu.engine.background_tasks import (
    MAX_ASKERS,
    MAX_QUESTIONS,
    BackgroundTasks,
    QuestionQueue,
    run_until,
)
from gpu.errors import EngineClosed, InvalidRequest, QueueFull


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


def run(tasks: BackgroundTasks) -> None:
    while tasks:
        tasks.advance()


def test_pieces_take_turns() -> None:
    log: list[str] = []
    tasks, values = BackgroundTasks(), [Future[str](), Future[str]()]
    for name, n, value in zip("ab", (3, 1), values, strict=True):
        tasks.add(Work(log, name, n).pieces(), value)
    run(tasks)
    assert log == ["a", "b", "a", "a"]
    assert [value.result(0) for value in values] == ["a", "b"]


def test_a_refusal_reaches_its_asker_and_others_go_on() -> None:
    tasks, refused, other = BackgroundTasks(), Future[str](), Future[str]()
    tasks.add(Work([], "a", 1, QueueFull("no room")).pieces(), refused)
    tasks.add(Work([], "b", 2).pieces(), other)
    run(tasks)
    assert isinstance(refused.exception(0), QueueFull)
    assert other.result(0) == "b"


def test_other_exceptions_are_raised_as_well() -> None:
    tasks, value = BackgroundTasks(), Future[str]()
    tasks.add(Work([], "a", 0, RuntimeError("device lost")).pieces(), value)
    with pytest.raises(RuntimeError, match="device lost"):
        tasks.advance()
    assert isinstance(value.exception(0), RuntimeError)


@pytest.mark.parametrize("n_before", [0, 1, 2])
def test_a_cancelled_value_ends_its_work(n_before: int) -> None:
    work = Work([], "a", 2)
    tasks, value = BackgroundTasks(), Future[str]()
    tasks.add(work.pieces(), value)
    for _ in range(n_before):
        tasks.advance()
    value.cancel()
    run(tasks)
    assert value.cancelled()
    assert len(work.log) == n_before
    assert work.closed or n_before == 0


def test_closing_refuses_all_but_the_cancelled() -> None:
    tasks, waiting, left = BackgroundTasks(), Future[str](), Future[str]()
    tasks.add(Work([], "a", 5).pieces(), waiting)
    tasks.add(Work([], "b", 5).pieces(), left)
    left.cancel()
    tasks.refuse(EngineClosed("closed"))
    assert isinstance(waiting.exception(0), EngineClosed)
    assert not tasks


@pytest.mark.parametrize(("over_after", "value"), [(9, "a"), (2, None), (0, None)])
def test_work_ends_when_its_run_ends(over_after: int, value: str | None) -> None:
    log: list[str] = []
    work, tasks, answer = Work(log, "a", 3), BackgroundTasks(), Future[str | None]()
    tasks.add(run_until(lambda: len(log) > over_after - 1, work.pieces()), answer)
    run(tasks)
    assert answer.result(0) == value
    assert len(log) == min(3, over_after)
    assert work.closed or not log


# ---- questions -------------------------------------------------------------------------------


def ask(
    questions: QuestionQueue, log: list[str], name: str, n: int, asker: str, n_blocks: int = 0
) -> Future[str]:
    value = Future[str]()
    questions.add(Work(log, name, n).pieces(), value, asker, n_blocks)
    return value


def finish(questions: QuestionQueue) -> None:
    while questions:
        questions.advance()


def test_askers_take_turns_and_each_gets_one_answer_after_the_other() -> None:
    log: list[str] = []
    questions = QuestionQueue(lambda: 100)
    for name in ("a1", "a2", "a3"):
        ask(questions, log, name, 2, "a")
    ask(questions, log, "b1", 2, "b")
    ask(questions, log, "c1", 1, "c")
    finish(questions)
    assert log == ["a1", "b1", "c1", "a1", "b1", "a2", "a2", "a3", "a3"]


def test_questions_whose_tokens_do_not_fit_together_follow_each_other() -> None:
    """Small ones that come later do not overtake, else a large one might wait for ever."""
    log: list[str] = []
    questions = QuestionQueue(lambda: 10)
    ask(questions, log, "a", 3, "a", 8)
    ask(questions, log, "b", 2, "b", 9)
    for name in ("c1", "c2"):
        ask(questions, log, name, 2, "c", 2)
    finish(questions)
    assert log == ["a", "a", "a", "b", "b", "c1", "c1", "c2", "c2"]


def test_a_question_that_never_fits_is_begun_alone() -> None:
    log: list[str] = []
    questions = QuestionQueue(lambda: 0)
    ask(questions, log, "a", 2, "a", 50)
    ask(questions, log, "b", 2, "b", 50)
    finish(questions)
    assert log == ["a", "a", "b", "b"]


def test_too_many_questions_are_refused_but_not_the_first_of_an_asker() -> None:
    log: list[str] = []
    questions = QuestionQueue(lambda: 100)
    for i in range(MAX_QUESTIONS):
        ask(questions, log, str(i), 1, "flood")
    with pytest.raises(QueueFull, match="64 questions wait for an answer"):
        ask(questions, log, "one more", 1, "flood")
    late = ask(questions, log, "late", 1, "late")
    for i in range(MAX_ASKERS - MAX_QUESTIONS - 1):
        ask(questions, log, f"other {i}", 1, f"other {i}")
    with pytest.raises(QueueFull):
        ask(questions, log, "too late", 1, "too late")
    finish(questions)
    assert late.result(0) == "late"
    assert log.index("late") == 1
    assert not {"one more", "too late"} & set(log)


def test_nothing_is_computed_for_an_asker_that_left() -> None:
    log: list[str] = []
    questions = QuestionQueue(lambda: 100)
    gone = [ask(questions, log, name, 5, "a") for name in ("a1", "a2")]
    other = ask(questions, log, "b", 1, "b")
    questions.advance()
    questions.cancel("a")
    questions.cancel("nobody")
    finish(questions)
    assert log == ["a1", "b"]
    assert all(isinstance(value.exception(0), InvalidRequest) for value in gone)
    assert other.result(0) == "b"


def test_a_question_that_fails_ends_alone() -> None:
    questions, failed, log = QuestionQueue(lambda: 100), Future[str](), list[str]()
    questions.add(Work([], "a", 1, QueueFull("no room")).pieces(), failed, "a")
    after = ask(questions, log, "a2", 1, "a")
    finish(questions)
    assert isinstance(failed.exception(0), QueueFull)
    assert after.result(0) == "a2"


def test_a_bug_in_a_question_is_raised_and_the_others_are_still_there() -> None:
    questions, value, log = QuestionQueue(lambda: 100), Future[str](), list[str]()
    questions.add(Work([], "a", 0, RuntimeError("device lost")).pieces(), value, "a")
    after = ask(questions, log, "a2", 1, "a")
    with pytest.raises(RuntimeError, match="device lost"):
        questions.advance()
    assert isinstance(value.exception(0), RuntimeError)
    questions.refuse(EngineClosed("closed"))
    assert isinstance(after.exception(0), EngineClosed)
    assert not questions


def test_a_cancelled_question_needs_no_room() -> None:
    log: list[str] = []
    questions = QuestionQueue(lambda: 10)
    running = ask(questions, log, "a", 3, "a", 10)
    ask(questions, log, "b", 3, "b", 10).cancel()
    ask(questions, log, "c", 1, "c", 0)
    finish(questions)
    assert running.result(0) == "a"
    assert log.count("b") == 0
    assert log.index("c") < 3
