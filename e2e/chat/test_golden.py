"""The bundled model's golden ids reach the page, one by one with their log-probabilities and norms,
and its words stand there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, WebSocket

from e2e.playground import Playground
from gpu import Tokenizer
from tests.golden import Golden, tale
from tests.gpu.ops.rig import compare
from tests.serving import serving
from tests.test_golden import LOGPROB, NORM

pytestmark = [pytest.mark.quick, pytest.mark.smoke]

END = 2
"""The id that ends an answer, which the page does not ask to ignore."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--dtype", "f32", "--model", tale().folder) as address:
        yield address


def chat() -> Golden:
    return next(text for text in tale().texts if text.asked)


def test_the_page_gets_the_golden_ids(page: Page, url: str) -> None:
    text = chat()
    assert text.asked is not None
    assert text.logprobs is not None
    assert text.norms is not None
    tokens: list[dict[str, Any]] = []

    def on_frame(frame: str | bytes) -> None:
        event: dict[str, Any] = json.loads(frame).get("event", {})
        if event.get("type") == "token":
            tokens.append(event)

    def on_socket(socket: WebSocket) -> None:
        socket.on("framereceived", on_frame)

    page.on("websocket", on_socket)
    play = Playground(page, url=url).open()
    page.get_by_role("button", name="Greedy").click()
    play.set(max_tokens=256)
    play.ask(text.asked)
    play.wait_done()

    n = text.greedy_ids.index(END) + 1
    assert [token["id"] for token in tokens] == text.greedy_ids[:n]
    assert play.text() == Tokenizer.load(tale().folder).decode(text.greedy_ids[:n])
    logprobs = np.array([token["logprob"] for token in tokens])
    compare("golden.logprob.page", text.prompt, logprobs, text.logprobs[:n], np.array(LOGPROB), 0)
    stats = [token["stats"] for token in tokens if token.get("stats")]
    assert len(stats) == n
    norms = [[s["embedding"], *(layer["residual"] for layer in s["layers"])] for s in stats]
    want = text.norms[:, [s["position"] for s in stats]].T
    compare("golden.norm.page", text.prompt, np.array(norms), want, NORM * want, 0)
