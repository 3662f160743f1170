"""SmolLM2-135M-Instruct as published, behind the page and `/v1` of a server that a user started."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from e2e.playground import Playground
from tests.real_weights import real_weights
from tests.serving import serving

pytestmark = [pytest.mark.quick, pytest.mark.push]

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving("--model", real_weights("SmolLM2-135M-Instruct"), "--context", "512") as address:
        yield address


def test_the_page_and_the_api_answer_a_question_of_the_articles(page: Page, address: str) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 20}
    request = urllib.request.Request(
        f"{address}v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["choices"][0]["message"]["content"] == ANSWER
    play = Playground(page, url=address).open()
    page.get_by_role("button", name="Greedy").click()
    play.ask(QUESTION)
    play.wait_done()
    expect(page.get_by_text(ANSWER).first).to_be_visible()
