"""The whole path: the bundled model, the WGSL engine in its own process, the page."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from e2e.playground import Playground
from e2e.site import Site
from tests.serving import serving

ASK = "Tell me a story about a fox who finds a lantern"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as address:
        yield address


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
    play = Playground(page, url).open()
    page.get_by_role("button", name="Greedy").click()
    play.set(max_tokens=48)
    play.ask(ASK)
    play.wait_done()
    play.wait_tokens(40)
    play.wait_done()
    assert play.text() == expected


def test_every_layer_is_measured(page: Page, url: str) -> None:
    play = Playground(page, url).open()
    play.set(max_tokens=24)
    play.ask(ASK)
    play.wait_tokens(10)
    play.wait_done()
    rows = page.locator("#lrows tr:not(.end)")
    assert rows.count() == int(
        re.match(
            r"\d+",
            page.evaluate(
                "() => [...document.querySelectorAll('#facts div')]"
                ".find((d) => d.firstChild.textContent === 'Layers').lastChild.textContent"
            ),
        ).group()
    )  # type: ignore[union-attr]
    for row in rows.all():
        attention, mlp, entropy, residual, _time = (
            cell.inner_text() for cell in row.locator("td").all()
        )
        assert 0 <= float(attention) < 5
        assert 0 <= float(mlp) < 5
        assert 0 <= float(entropy) < 12
        assert float(residual) > 0
    expect(page.get_by_test_id("kv")).to_contain_text("blocks")


def test_a_slider_acts_and_a_reload_resumes(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled.url).open()
    play.set(temperature="0.5", max_tokens=160, seed=3)
    play.ask(ASK)
    play.wait_tokens(5)
    play.slide("temperature", 1.1)
    expect(page.locator(".mark-change")).to_have_text("temperature 0.5 → 1.1")
    page.reload()
    expect(page.locator(".mark-change")).to_have_text("temperature 0.5 → 1.1")
    play.wait_done()
    numbers = play.numbers()
    assert numbers == list(range(len(numbers)))
    text = play.text()
    page.reload()
    play.wait_tokens(len(numbers))
    assert play.text() == text
