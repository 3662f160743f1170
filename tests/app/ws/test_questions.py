"""Questions of one page are bounded, and end when the page goes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from app.protocol.messages import MAX_QUESTIONS, Inspect
from app.ws import questions
from app.ws.questions import ByteCounter, Questions
from gpu import InvalidRequest, QueueFull
from gpu.inspection.requests import Answer, Array, Losses, Question
from tests.app.conftest import StartSite
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions
from tests.app.fake_tokenizer import FakeTokenizer

MB = 1 << 20


class Asked:
    """Fake of `EngineClient` that records questions and which pages are gone."""

    def __init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.futures: list[Future[Answer]] = []
        self.askers: list[int] = []
        self.gone: list[int] = []

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        self.askers.append(asker)
        self.futures.append(Future())
        return self.futures[-1]

    def cancel_questions(self, asker: int) -> None:
        self.gone.append(asker)

    def answer(self, i: int, n_bytes: int) -> None:
        self.futures[i].set_result(Answer({}, (Array.of("x", np.zeros(n_bytes // 4)),)))


class PageClient:
    """Page whose messages are kept until `read`."""

    def __init__(self, engine: Any, total: ByteCounter) -> None:
        self.unread: list[Callable[[], None]] = []
        self.questions = Questions(engine, self.reply, total)

    def reply(self, message: Any, sent: Callable[[], None] = lambda: None) -> None:
        self.unread.append(sent)

    def ask(self) -> None:
        self.questions.inspect(Inspect(1, Losses([1, 2])))

    def read(self) -> None:
        while self.unread:
            self.unread.pop(0)()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "MAX_PAGE_BYTES", 4 * MB)
    monkeypatch.setattr(questions, "MAX_TOTAL_BYTES", 6 * MB)


@pytest.mark.usefixtures("small")
def test_a_page_that_does_not_read_asks_no_more() -> None:
    engine, total = Asked(), ByteCounter()
    page, other = PageClient(engine, total), PageClient(engine, total)
    for i in range(2):
        page.ask()
        engine.answer(i, 2 * MB + 4)
    with pytest.raises(QueueFull, match="wait to be sent to this page, and the limit is 4,194,304"):
        page.ask()
    other.ask()
    page.read()
    page.ask()
    assert len(set(engine.askers)) == 2


@pytest.mark.usefixtures("small")
def test_all_pages_together_have_a_bound_too() -> None:
    engine, total = Asked(), ByteCounter()
    pages = [PageClient(engine, total) for _ in range(3)]
    for i, page in enumerate(pages[:2]):
        page.ask()
        engine.answer(i, 3 * MB + 4)
    with pytest.raises(QueueFull, match="wait to be sent to all pages"):
        pages[2].ask()
    pages[0].questions.close()  # what it had not read is dropped
    pages[2].ask()
    pages[0].read()
    pages[1].read()
    assert total.n == 0


def test_answers_that_come_after_the_page_has_gone_are_not_kept() -> None:
    engine, total = Asked(), ByteCounter()
    page = PageClient(engine, total)
    page.ask()
    page.questions.close()
    engine.answer(0, MB)
    assert total.n == 0
    assert engine.gone == engine.askers


def test_bytes_of_a_page_are_not_its_questions() -> None:
    engine = Asked()
    page = PageClient(engine, ByteCounter())
    for _ in range(MAX_QUESTIONS):
        page.ask()
    with pytest.raises(
        QueueFull, match=f"{MAX_QUESTIONS} questions of this page are being answered"
    ):
        page.ask()


class _Patient(FakeEngine):
    """Engine that answers nothing until the asker is reported gone, and then everything."""

    unanswered: list[tuple[int, Future[Answer]]]

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        if not hasattr(self, "unanswered"):
            self.unanswered = []
        future: Future[Answer] = Future()
        if isinstance(question, Losses) and len(question.ids) == 3:  # who is still asking?
            future.set_result(Answer({"waiting": len(self.unanswered)}, ()))
        else:
            self.unanswered.append((asker, future))
        return future

    def cancel_questions(self, asker: int) -> None:
        gone = [future for other, future in self.unanswered if other == asker]
        self.unanswered = [entry for entry in self.unanswered if entry[0] != asker]
        for future in gone:
            future.set_exception(InvalidRequest("gone"))


def _patient(progress: Any) -> FakeEngine:
    return _Patient(FakeOptions(delay=0.002))


@pytest.mark.parametrize("process", [False, True], ids=["local", "process"])
def test_the_engine_learns_which_page_is_gone(start_site: StartSite, process: bool) -> None:
    site = start_site(load=_patient, process=process)
    leaving, staying = site.page(), site.page()
    for page, n in ((leaving, 3), (staying, 2)):
        for request in range(n):
            page.send_message(
                "inspect", request=request, question={"kind": "losses", "ids": [1, 2]}
            )

    def waiting(request: int) -> int:
        question = {"kind": "losses", "ids": [1, 2, 3]}
        staying.send_message("inspect", request=request, question=question)
        answer = staying.next(10)
        while answer.get("request") != request:
            answer = staying.next(10)
        return int(answer["info"]["waiting"])

    for request in range(100, 200):
        if waiting(request) == 5:
            break
    leaving.drop()
    for request in range(200, 2000):
        if waiting(request) == 2:
            return
    raise AssertionError("the questions of the page that has gone are still there")
