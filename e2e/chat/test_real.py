"""The whole path: the bundled model, the WGSL engine in its own process, the page."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import Page, expect

from e2e import oracle
from e2e.bundled import engine_tokens
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES
from gpu import SamplingParams, ScheduledUpdate
from tests.serving import serving

ASK = "Tell me a story about a fox who finds a lantern"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as address:
        yield address


@pytest.mark.quick
def test_the_page_shows_the_text_that_the_api_gives(page: Page, url: str) -> None:
    body = {
        "messages": [{"role": "user", "content": ASK}],
        "temperature": 0,
        "max_tokens": 48,
    }
    request = urllib.request.Request(
        url + "v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        expected = json.load(response)["choices"][0]["message"]["content"]
    play = Playground(page, url=url).open()
    page.get_by_role("button", name="Greedy").click()
    play.set(max_tokens=48)
    play.ask(ASK)
    play.wait_done()
    play.wait_tokens(48)
    play.wait_done()
    assert play.text() == expected
    assert play.numbers() == list(range(48))


def test_every_layer_is_measured(page: Page, url: str) -> None:
    """The page shows the values that `transformers` computes in double precision."""
    play = Playground(page, url=url).open()
    messages = play.messages
    play.set(max_tokens=24, seed=3)
    play.ask(ASK)
    play.wait_tokens(24)
    play.wait_done()
    ids = [token["id"] for token in messages.events("accepted")[0]["prompt"]]
    ids += [token["id"] for token in messages.events("token")]
    n_blocks = -(-(len(ids) - 1) // messages.last("hello")["limits"]["block_tokens"])
    expect(page.get_by_test_id("kv")).to_contain_text(f"{n_blocks} of ")
    for index in (3, 17):
        play.tokens.nth(index).click()
        expect(page.locator("#tok-no")).to_have_text(str(index + 1))
        page.evaluate(TWO_FRAMES)
        rows = page.locator("#lrows tr:not(.end)")
        measured = [
            [float(cell.inner_text()) for cell in row.locator("td").all()[:4]] for row in rows.all()
        ]
        wanted = oracle.layers(ids[: len(ids) - 24 + index])
        assert len(measured) == len(wanted)
        for shown, layer in zip(measured[::-1], wanted, strict=True):
            attention, mlp, entropy, residual = shown
            assert attention == pytest.approx(layer.attention / layer.residual, abs=0.006)
            assert mlp == pytest.approx(layer.mlp / layer.residual, abs=0.006)
            assert entropy == pytest.approx(layer.entropy, abs=0.06)
            assert residual == pytest.approx(layer.residual, rel=0.01)


def test_a_slider_acts_and_a_reload_resumes(page: Page, bundled: Site) -> None:
    """After each of two reloads the page shows what the engine writes without interruption, with
    the same change at the announced token."""
    play = Playground(page, bundled).open()
    messages = play.messages
    play.set(temperature="0.5", max_tokens=120, seed=3)
    play.ask(ASK)
    play.wait_tokens(5)
    play.slide("temperature", 1.1)
    expect(page.locator(".mark-change")).to_have_text("temperature 0.5 → 1.1")
    page.reload()
    expect(page.locator(".mark-change")).to_have_text("temperature 0.5 → 1.1")
    play.wait_done()
    change = messages.events("updated")[0]
    updates = (ScheduledUpdate(change["index"], {"temperature": 1.1}),)
    prompt = [token["id"] for token in messages.events("accepted")[0]["prompt"]]
    first = msgspec.convert(messages.events("accepted")[0]["params"], SamplingParams)
    alone = engine_tokens(bundled, prompt, first, updates)
    text = "".join(token.text for token in alone)
    assert play.numbers() == list(range(len(alone)))
    assert play.text() == text
    page.reload()
    play.wait_tokens(len(alone))
    assert play.numbers() == list(range(len(alone)))
    assert play.text() == text
