"""Questions about a run, over the socket and through the engine's process, are answered or
refused."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest

from app.engine.pipe import InspectRun
from app.engine.supervisor import SupervisedEngine
from app.engine_client import Progress
from app.protocol.messages import MAX_QUESTIONS, MESSAGE_BYTES, Inspect
from app.ws.incoming import decode
from gpu import DeviceError, EngineError, InvalidRequest, SamplingParams
from gpu.inspection.requests import Answer, Array, AttentionFrom, Losses, Question, Waterfall
from tests.app import fake_inspection
from tests.app.conftest import Site, StartSite
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions, info_of
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.page import PATIENCE_S, LateReader, PageClient

IDS = [0, 262, 263, 264, 265]
INFO = info_of(FakeOptions())
QUESTIONS: dict[str, dict[str, Any]] = {
    "attention_from": {"ids": IDS, "position": 3},
    "attention_to": {"ids": IDS, "position": 1},
    "logit_lens": {"ids": IDS, "position": 2, "chosen": 270, "top": 3},
    "forward": {"ids": IDS, "position": 3, "layer": 1, "head": 1, "top": 2},
    "waterfall": {
        "ids": IDS,
        "position": 4,
        "params": {"temperature": 0.7, "seed": 2**64 - 1, "stop": ["x"]},
        "index": 1,
    },
    "losses": {"ids": IDS, "top": 2, "first": 1},
    "beam": {"ids": IDS, "width": 3, "depth": 5, "length_penalty": 1},
    "embedding": {"ids": IDS, "pooling": "mean"},
    "plan": {"n_rows": 2, "context": 30},
    "profile": {"n_rows": 4},
}


def ask(page: PageClient, request: int, kind: str = "losses", **fields: Any) -> None:
    question = {"kind": kind, **(fields or QUESTIONS[kind])}
    page.send_message("inspect", request=request, question=question)


def outcome(page: PageClient, request: int, timeout: float = PATIENCE_S) -> dict[str, Any]:
    """Return the answer to a question, or the error."""
    end = time.monotonic() + timeout
    while True:
        for message in page.messages:
            if message.get("request") == request:
                return message
        page.next(max(0.01, end - time.monotonic()))


def expected(kind: str) -> Answer:
    """Return the fake engine's answer, asked without the socket."""
    fields = {"kind": kind, **QUESTIONS[kind]}
    question = msgspec.convert(fields, Question)
    return fake_inspection.answer(question, INFO)


@pytest.mark.parametrize("process", [False, True], ids=["local", "process"])
def test_every_kind_of_question_is_answered_bit_for_bit(
    start_site: StartSite, process: bool
) -> None:
    page = start_site(process=process).page()
    for request, kind in enumerate(QUESTIONS):
        ask(page, request, kind)
        answer, wanted = outcome(page, request), expected(kind)
        assert (answer["type"], answer["kind"]) == ("answer", kind), answer
        answer["info"].pop("pieces", None)
        assert answer["info"] == wanted.info
        assert list(answer["arrays"]) == [array.name for array in wanted.arrays]
        for array in wanted.arrays:
            assert np.array_equal(answer["arrays"][array.name], array.numpy(), equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "array"), [("logit_lens", "ids"), ("losses", "top_ids"), ("beam", "ids")]
)
def test_ids_come_with_their_texts(start_site: StartSite, kind: str, array: str) -> None:
    page, tokenizer = start_site().page(), FakeTokenizer()
    ask(page, 1, kind)
    answer = outcome(page, 1)
    ids = {int(id) for id in answer["arrays"][array].flat}
    assert answer["info"]["pieces"] == {str(id): tokenizer.piece(id) for id in ids}


def test_questions_go_on_beside_a_generation(start_site: StartSite) -> None:
    page = start_site(delay=0.005).page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 60})
    for request in range(20):
        ask(page, request)
        assert outcome(page, request)["type"] == "answer"
    assert page.until("done")["completion_tokens"] == 60


def test_each_page_gets_its_own_answers(start_site: StartSite) -> None:
    """The numbers are the pages', so two pages may use the same ones."""
    site = start_site(process=True, ask_seconds=0.01)
    first, second = site.page(), site.page()
    for request in range(5):
        ask(first, request, "attention_from", ids=IDS, position=request)
        ask(second, request, "attention_from", ids=IDS[::-1], position=request)
    for page, ids in ((first, IDS), (second, IDS[::-1])):
        for request in range(5):
            question = AttentionFrom(ids, request)
            wanted = fake_inspection.answer(question, INFO)
            assert np.array_equal(outcome(page, request)["arrays"]["weights"], wanted["weights"])


# ---- what goes wrong -------------------------------------------------------------------------

BAD_MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown kind": ({"kind": "mind_reading"}, "kind"),
    "no kind": ({"ids": IDS}, "question"),
    "no question": ({}, "question"),
    "missing field": ({"kind": "attention_from", "ids": IDS}, "position"),
    "unknown field": ({"kind": "profile", "speed": 1}, "speed"),
    "a text for ids": ({"kind": "losses", "ids": "1 2 3"}, "ids"),
    "a text among ids": ({"kind": "losses", "ids": [1, "2"]}, "ids"),
    "half an id": ({"kind": "losses", "ids": [1.5]}, "ids"),
    "unknown setting": (
        {"kind": "waterfall", "ids": IDS, "position": 0, "index": 0, "params": {"heat": 1}},
        "heat",
    ),
}


@pytest.mark.parametrize(("question", "named"), BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_a_question_that_cannot_be_read_is_refused(
    site: Site, question: dict[str, Any], named: str
) -> None:
    page = site.page()
    page.send_message("inspect", request=5, question=question)
    error = outcome(page, 5)
    assert (error["type"], error["code"]) == ("error", "bad_message")
    assert named in error["message"] + error["param"]
    ask(page, 6)
    assert outcome(page, 6)["type"] == "answer"


@pytest.mark.parametrize(
    ("engine", "code"), [(2, "invalid_request"), (-1, "invalid_request"), ("1", "bad_message")]
)
def test_an_engine_that_is_not_there_is_not_asked(site: Site, engine: Any, code: str) -> None:
    page = site.page()
    question = {"kind": "losses", **QUESTIONS["losses"]}
    page.send_message("inspect", request=1, question=question, engine=engine)
    error = outcome(page, 1)
    assert (error["code"], error["param"]) == (code, "engine")
    page.send_message("inspect", request=2, question=question, engine=1)
    assert outcome(page, 2)["type"] == "answer"


@pytest.mark.parametrize("request_", ["text", None, 1.5])
def test_a_question_without_a_number_is_refused(site: Site, request_: Any) -> None:
    page = site.page()
    question = {"kind": "profile"}
    page.send_message("inspect", question=question, **({"request": request_} if request_ else {}))
    error = page.until("error")
    assert (error["code"], error["request"]) == ("bad_message", None)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no ids": ({"kind": "losses", "ids": []}, "ids"),
    "id outside the vocabulary": ({"kind": "losses", "ids": [1, 10**6]}, "ids"),
    "negative id": ({"kind": "losses", "ids": [-1, 1]}, "ids"),
    "position after the end": ({"kind": "attention_from", "ids": IDS, "position": 5}, "position"),
    "negative position": ({"kind": "attention_to", "ids": IDS, "position": -1}, "position"),
    "top 0": ({"kind": "losses", "ids": IDS, "top": 0}, "top"),
    "top 101": ({"kind": "losses", "ids": IDS, "top": 101}, "top"),
    "no embedding model to encode with": ({"kind": "encode", "texts": [IDS]}, "kind"),
    "no encoder-decoder": ({"kind": "seq2seq", "ids": IDS}, "kind"),
    "no encoder to watch": ({"kind": "encoder_attention", "ids": IDS}, "kind"),
}


@pytest.mark.parametrize("process", [False, True], ids=["local", "process"])
def test_refusals_of_the_engine_carry_the_request_number(
    start_site: StartSite, process: bool
) -> None:
    page = start_site(process=process).page()
    for request, (question, param) in enumerate(REFUSED.values()):
        page.send_message("inspect", request=request, question=question)
        error = outcome(page, request)
        assert (error["type"], error["code"]) == ("error", "invalid_request"), question
        assert (error["param"], error["id"]) == (param, "")
    ask(page, 99)
    assert outcome(page, 99)["type"] == "answer"


def test_numbers_that_no_message_can_hold_are_refused(start_site: StartSite) -> None:
    page = start_site(process=True).page()
    ask(page, 1, "losses", ids=[1, 2**64])
    assert outcome(page, 1)["code"] == "invalid_request"
    ask(page, 2)
    assert outcome(page, 2)["type"] == "answer"


def test_a_question_that_is_too_large_is_refused_by_its_number(site: Site) -> None:
    page = site.page()
    ask(page, 3, "losses", ids=[1] * MESSAGE_BYTES)
    error = outcome(page, 3)
    assert (error["code"], str(MESSAGE_BYTES) in error["message"]) == ("bad_message", True)
    ask(page, 4)
    assert outcome(page, 4)["type"] == "answer"


def test_a_question_may_name_every_token_of_a_long_context(start_site: StartSite) -> None:
    page = start_site(context=100_000).page()
    most = page.messages[0]["limits"]["message_bytes"]
    assert most > 100_000 * len("128000,")
    ask(page, 1, "losses", ids=[1] * 100_000, first=99_990)
    assert outcome(page, 1)["type"] == "answer"
    page.send(" " * (most + 1))
    page.until("error", code="bad_message")
    ask(page, 2)
    assert outcome(page, 2)["type"] == "answer"


def test_without_an_engine_questions_are_refused(start_site: StartSite) -> None:
    asked = threading.Event()

    def load_late(progress: Progress) -> FakeEngine:
        asked.wait(PATIENCE_S)
        return FakeEngine(FakeOptions())

    try:
        for site, hint in (
            (start_site(load=load_late, wait=False), "loading"),
            (start_site(fail="weights.safetensors: truncated", wait=False), ""),
        ):
            page = PageClient(site.port)
            site.pages.append(page)
            ask(page, 1)
            error = outcome(page, 1)
            assert error["code"] == "unavailable"
            assert hint in error["message"]
    finally:
        asked.set()


def test_one_page_cannot_flood_the_engine(start_site: StartSite) -> None:
    site = start_site(ask_seconds=0.1)
    page, other = site.page(), site.page()
    n = 3 * MAX_QUESTIONS
    for request in range(n):
        ask(page, request)
    ask(other, 0)
    outcomes = [outcome(page, request) for request in range(n)]
    kinds = [o["type"] for o in outcomes]
    assert kinds == ["answer"] * MAX_QUESTIONS + ["error"] * (n - MAX_QUESTIONS)
    assert {o["code"] for o in outcomes[MAX_QUESTIONS:]} == {"queue_full"}
    assert outcome(other, 0)["type"] == "answer"
    for request in range(n, n + MAX_QUESTIONS):  # what was answered makes room again
        ask(page, request)
    for request in range(n, n + MAX_QUESTIONS):
        assert outcome(page, request)["type"] == "answer"


def test_a_refused_question_frees_its_place(start_site: StartSite) -> None:
    page = start_site(process=True).page()
    for request in range(3 * MAX_QUESTIONS):
        ask(page, request, "losses", ids=[])
        assert outcome(page, request)["code"] == "invalid_request"


class _Large(FakeEngine):
    """Engine whose answers are larger than a socket's buffers."""

    def _answer(self, question: Question, future: Future[Answer]) -> None:
        future.set_result(Answer({}, (Array.of("weights", np.ones(2_000_000)),)))


def _large(progress: Any) -> FakeEngine:
    return _Large(FakeOptions(delay=0.002))


def test_answers_that_are_not_read_count_as_under_way(start_site: StartSite) -> None:
    site = start_site(load=_large)
    page = PageClient(site.port, thread_class=LateReader)
    site.pages.append(page)
    for request in range(MAX_QUESTIONS):
        ask(page, request)
    time.sleep(0.5)  # all are answered, and few are sent
    for request in range(MAX_QUESTIONS, 2 * MAX_QUESTIONS):
        ask(page, request)
    page.thread.start_reading()
    outcomes = [outcome(page, request, 20) for request in range(2 * MAX_QUESTIONS)]
    answered = [o["arrays"]["weights"].shape for o in outcomes if o["type"] == "answer"]
    assert MAX_QUESTIONS <= len(answered) < 2 * MAX_QUESTIONS
    assert set(answered) == {(2_000_000,)}
    assert {o["code"] for o in outcomes if o["type"] == "error"} == {"queue_full"}


def test_a_large_answer_does_not_hold_up_other_pages(start_site: StartSite) -> None:
    site = start_site(load=_large, process=True)
    slow = PageClient(site.port, thread_class=LateReader)
    site.pages.append(slow)
    for request in range(MAX_QUESTIONS):
        ask(slow, request)
    page = site.page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 30})
    assert page.until("done")["completion_tokens"] == 30


def test_a_page_that_leaves_takes_its_questions_along(start_site: StartSite) -> None:
    site = start_site(process=True, ask_seconds=0.05)
    for _ in range(5):
        page = site.page()
        for request in range(MAX_QUESTIONS):
            ask(page, request)
        page.drop()
    page = site.page()
    ask(page, 1)
    assert outcome(page, 1)["type"] == "answer"
    assert [m for m in page.messages if m["type"] == "answer"] == [page.messages[-1]]


def test_questions_end_with_the_engines_process(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start_site(process=True, ask_seconds=3600.0)
    page = site.page()
    engine = site.engine
    assert isinstance(engine, SupervisedEngine)
    asked: queue.SimpleQueue[Question] = queue.SimpleQueue()
    inspect = engine.inspect

    def noted(question: Question, asker: int = 0) -> Future[Answer]:
        answer = inspect(question, asker)
        asked.put(question)
        return answer

    monkeypatch.setattr(engine, "inspect", noted)
    for request in range(3):
        ask(page, request)
    for _ in range(3):
        asked.get(timeout=PATIENCE_S)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    for request in range(3):
        assert outcome(page, request)["code"] == "unavailable"
    page.until("status", state="ready")
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 2})
    assert page.until("done")["reason"] == "length"


# ---- the engine's process --------------------------------------------------------------------


class _Odd(FakeEngine):
    """Engine that fails in the way that the number of ids selects."""

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        assert isinstance(question, Losses)
        future: Future[Answer] = Future()
        match len(question.ids):
            case 1:
                raise InvalidRequest("refused at once", "ids")
            case 2:
                raise ZeroDivisionError("a bug at once")
            case 3:
                future.set_exception(ZeroDivisionError("a bug later"))
            case 4:
                future.set_result(Answer({"object": object()}, ()))
            case 5:
                future.set_exception(DeviceError("this device cannot look"))
            case 6:
                self.failure = "the engine failed: the device was lost"
                future.set_exception(DeviceError("lost"))
            case _:
                future.set_result(Answer({}, ()))
        return future


def _odd(progress: Any) -> FakeEngine:
    return _Odd(FakeOptions(delay=0.002))


@pytest.fixture
def asked(start_site: StartSite) -> Callable[[int], Answer]:
    """Ask `_Odd`, in a process of its own."""
    engine = start_site(load=_odd, process=True).engine
    return lambda n: engine.inspect(Losses([1] * n)).result(10)


def test_an_error_in_the_process_ends_only_its_question(
    asked: Callable[[int], Answer],
) -> None:
    with pytest.raises(InvalidRequest, match="refused at once") as refusal:
        asked(1)
    assert refusal.value.param == "ids"
    for n in (2, 3, 4):
        with pytest.raises(EngineError, match="the engine made a mistake"):
            asked(n)
    with pytest.raises(DeviceError, match="cannot look"):
        asked(5)
    assert asked(7) == Answer({}, ())


def test_an_engine_that_fails_over_a_question_gets_a_new_process(start_site: StartSite) -> None:
    engine = start_site(load=_odd, process=True).engine
    assert isinstance(engine, SupervisedEngine)
    pid = engine.pid
    with pytest.raises(EngineError):
        engine.inspect(Losses([1] * 6)).result(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while engine.pid == pid or engine.hello is None:
        assert time.monotonic() < deadline, engine.status
        time.sleep(0.02)
    assert engine.inspect(Losses([1] * 7)).result(PATIENCE_S) == Answer({}, ())


def test_closing_ends_the_questions_that_wait(start_site: StartSite) -> None:
    engine = start_site(process=True, ask_seconds=0.3).engine
    waiting = [engine.inspect(Losses([1, 2])) for _ in range(3)]
    engine.close()
    errors = [future.exception(10) for future in waiting]
    assert isinstance(errors[-1], EngineError)
    with pytest.raises(EngineError):
        engine.inspect(Losses([1, 2])).result(10)


def test_messages_hold_a_question_as_it_was_asked() -> None:
    """A seed of 64 bits is one of the numbers that JSON readers get wrong."""
    params = SamplingParams(seed=2**64 - 1, temperature=0.1)
    settings = {"seed": params.seed, "temperature": params.temperature}
    raw = {"kind": "waterfall", "ids": IDS, "position": 1, "params": settings, "index": 2}
    message = decode(json.dumps({"type": "inspect", "request": 1, "question": raw}))
    assert isinstance(message, Inspect)
    sent = msgspec.msgpack.encode(InspectRun(1, message.question))
    assert msgspec.msgpack.decode(sent, type=InspectRun).question == Waterfall(IDS, 1, params, 2)
