"""A real trained model's golden ids reach the page, one by one, and its words stand there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocket

from e2e.playground import Playground
from gpu import Tokenizer
from tests.serving import ROOT, serving

FOLDER = ROOT.parent / "shared/models/stories260k"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="../shared/models/stories260k is not there"
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--dtype", "f32", "--model", FOLDER) as address:
        yield address


@pytest.mark.slow
def test_the_page_gets_the_golden_ids(page: Page, url: str) -> None:
    case = json.loads((FOLDER / "golden.json").read_text())[0]
    ids: list[int] = []

    def on_frame(frame: str | bytes) -> None:
        event: dict[str, Any] = json.loads(frame).get("event", {})
        if event.get("type") == "token":
            ids.append(event["id"])

    def on_socket(socket: WebSocket) -> None:
        socket.on("framereceived", on_frame)

    page.on("websocket", on_socket)
    play = Playground(page, url).open()
    page.get_by_role("button", name="Greedy").click()
    play.set(max_tokens=256)
    play.ask(case["prompt"])
    play.wait_tokens(256)
    play.wait_done()
    assert ids == case["greedy_ids"]
    whole = Tokenizer.load(FOLDER).decode(case["prompt_ids"] + case["greedy_ids"])
    assert play.text() == whole  # a completion shows its prompt first
