"""Requests and messages that fit their schemas, or nearly do, are served or refused as the schemas
say, and the server goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from app import create_app, tale
from app.config import Settings
from app.engine_client import LocalEngine
from app.openai.openapi import document
from app.openai.operations import ERROR, OPERATIONS, Operation
from app.protocol.schema import protocol_schema
from tests.app.conftest import StartSite, wait_ready
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import CHAT_TEMPLATE, FakeTokenizer
from tests.app.openai.test_openapi import BODIES
from tests.app.schemas import Document, Schema
from tests.app.ws.test_websocket import settled
from tests.gpu.ops.mutations import trees

QUICK, LONG = 25, 500
WITH_BODY = [operation for operation in OPERATIONS if operation.body is not None]
HOW_MANY = pytest.mark.parametrize(
    "n", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)], ids=["", "long"]
)


def examples(n: int) -> Callable[..., Any]:
    return settings(
        max_examples=n,
        derandomize=n == QUICK,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )


@st.composite
def generations(draw: st.DrawFn) -> Any:
    """Messages that start a generation, or nearly do."""
    id = f"g{draw(st.integers(0))}"
    message = {"type": "generate", "id": id, "prompt": "Once", "params": {"max_tokens": 3}}
    return draw(st.just(message) | trees(message))


@pytest.fixture(scope="module")
def http() -> Iterator[FlaskClient]:
    engine = LocalEngine(loader(delay=0.0), FakeTokenizer(CHAT_TEMPLATE), tale.model_dir())
    engine.start()
    wait_ready(engine)
    yield create_app(Settings(port=0), engine).test_client()
    engine.close()


@HOW_MANY
@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.path)
def test_every_answer_is_one_that_the_document_describes(
    http: FlaskClient, operation: Operation, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    described = document("1")
    content = described["paths"][operation.path][operation.method]["requestBody"]["content"]
    bodies = Document(described, of=content["application/json"]["schema"]).near()
    if operation.path in BODIES:
        bodies |= trees(BODIES[operation.path])
    statuses = set[int]()

    @examples(n)
    @given(bodies)
    def whatever_comes(body: Any) -> None:
        data = json.dumps(body).encode("utf-8", "surrogatepass")
        path = operation.path.replace("{id}", "an-answer")
        response = http.open(path, method=operation.method.upper(), data=data)
        text = response.text
        statuses.add(response.status_code)
        assert response.status_code in (200, *operation.errors), text
        if response.status_code != 200:
            jsonschema.validate(response.json, ERROR)
        elif response.mimetype == "text/event-stream":
            assert operation.streams
            assert '"error"' not in text or '"error": null' in text or '"error":null' in text
        elif operation.answer is not None:
            jsonschema.validate(response.json, operation.answer)

    if operation.path in BODIES:
        whatever_comes = example(BODIES[operation.path])(whatever_comes)
    whatever_comes()
    assert statuses & {400, 404}
    assert 200 in statuses or "{id}" in operation.path
    assert not [record for record in caplog.records if record.exc_info]


@HOW_MANY
def test_every_message_is_answered_and_the_page_goes_on(
    start_site: StartSite, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    site = start_site(delay=0.0)
    page = site.page()
    schema: Schema = protocol_schema()
    answers = jsonschema.Draft202012Validator(schema["to_page"])
    messages = [{"role": "user", "content": "Hi"}]
    grammar = {"kind": "regex", "text": "a*b"}
    page.send_message(
        "generate", id="first", messages=messages, grammar=grammar, params={"max_tokens": 1}
    )
    page.until("done")  # the processes that this starts stay, and their threads
    page.send_message("update", id="first", params={"top_k": 5})
    page.until("error", id="first")  # the page's thread of updates stays, too
    n_threads = threading.active_count()
    kinds, numbers = set[str](), iter(range(10**6, 10**9))

    @examples(2 * n)
    @given(Document(schema["from_page"]).near() | generations())
    def whatever_comes(message: Any) -> None:
        number = next(numbers)
        page.send(json.dumps(message, ensure_ascii=True))
        page.send_message("count", request=number, prompt="Once")
        page.messages.clear()
        page.until("counted", request=number)
        for answer in page.messages:
            if "arrays" not in answer:
                answers.validate(answer)
            kinds.add(answer["type"])

    whatever_comes()
    assert {"event", "error", "counted"} <= kinds
    assert not [record for record in caplog.records if record.exc_info]
    assert settled(threading.active_count, n_threads) <= n_threads
