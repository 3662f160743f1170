"""The conversation that most tests of replays open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.playground import Playground
from e2e.replay import playback
from e2e.replay.conversation import ASK, CONTINUED
from e2e.replay.playback import Playback
from e2e.site import Site, fake_site


@pytest.fixture(scope="package")
def written(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, _sites: dict[Any, Site]
) -> Iterator[dict[str, Any]]:
    """A conversation that had it all: a change while writing, a continuation, another version, a
    second turn. {path, packed, replay, wire}"""
    page = browser.new_page()
    here = _sites.setdefault(
        (("delay", 0.05),), _sites.get((("delay", 0.05),)) or fake_site(delay=0.05)
    )
    play = Playground(page, here).open()
    messages = play.messages
    play.set(seed="18446744073709551615", max_tokens=60, temperature=0.8)
    play.ask(ASK)
    play.wait_tokens(8)
    play.slide("temperature", 1.4)
    play.wait_done()
    play.set(max_tokens=30)
    play.continue_button.click()
    play.wait_tokens(CONTINUED)
    play.wait_done()
    play.regenerate.click()
    expect(page.locator("#version")).to_have_text("2/2")
    play.wait_tokens(30)
    play.wait_done()
    play.set(max_tokens=12)
    page.get_by_role("switch").click()
    play.ask("<b>And</b> then?")
    play.wait_tokens(12)
    play.wait_done()
    folder = tmp_path_factory.mktemp("replay")
    made = play.playback
    path = made.save(folder / "story.json")
    packed = made.save(folder / "story.json.gz", "Save, compressed")
    yield {
        "path": path,
        "packed": packed,
        "replay": playback.read(path),
        "messages": messages,
        "url": here.url,
    }
    page.close()


@pytest.fixture
def alone(page: Page, site: Callable[..., Site]) -> Playback:
    """A fresh page that finds no server behind its WebSocket."""
    page.route_web_socket("**/ws", lambda route: route.close())
    page.goto(site().url)
    expect(page.get_by_test_id("notice")).to_contain_text("cannot be reached")
    return Playground(page).playback
