"""When the page asks for the KV cache."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.look.cache_view import choose, opened, radio, wrote
from e2e.playground import Playground
from e2e.site import Site
from gpu import InvalidRequest
from gpu.kv.state import KvState
from tests.app import fake_inspection

# When the page asks for the cache, on its own clock.
WATCH_QUESTIONS = """() => {
  window.askedAt = [];
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (data) {
    if (String(data).includes('"kind":"cache"')) window.askedAt.push(performance.now());
    return send.call(this, data);
  };
}"""
REST_MS = 500


def asked_at(page: Page) -> list[float]:
    return list(page.evaluate("() => window.askedAt"))


def test_it_is_asked_when_the_view_opens_and_not_again(
    page: Page, site: Callable[..., Site]
) -> None:
    page.add_init_script(f"({WATCH_QUESTIONS})()")
    wrote(page, site())
    look = Playground(page).look.open("cache")
    expect(look.source).to_contain_text("counted by the engine for this run")
    assert asked_at(page) == []
    choose(page, "All blocks")
    expect(look.source).to_contain_text("Counted by the engine")
    page.keyboard.press("ArrowLeft")
    expect(radio(page, "This run")).to_be_checked()
    page.keyboard.press("ArrowRight")
    expect(look.source).to_contain_text("Counted by the engine")
    page.set_viewport_size({"width": 1200, "height": 800})
    page.wait_for_timeout(2 * REST_MS)
    assert len(asked_at(page)) == 2
    look.open("plan").open("cache")
    expect(look.source).to_contain_text("Counted by the engine")
    assert len(asked_at(page)) == 3


@pytest.mark.slow
def test_it_is_asked_twice_a_second_while_something_is_written_and_once_after(
    page: Page, site: Callable[..., Site]
) -> None:
    page.add_init_script(f"({WATCH_QUESTIONS})()")
    play, look = opened(page, site(delay=0.02))
    page.keyboard.press("Escape")
    play.set(max_tokens=150)
    play.ask()
    play.wait_tokens(2)
    assert len(asked_at(page)) == 1, "not while it is closed"
    look.open("cache")
    start = page.evaluate("() => performance.now()")
    play.wait_tokens(150)
    play.wait_done()
    end = page.evaluate("() => performance.now()")
    page.wait_for_timeout(3 * REST_MS)
    times = asked_at(page)[1:]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert min(gaps) >= REST_MS - 1, gaps
    assert len(times) >= (end - start) / 1000, "it is followed"
    assert [at for at in times if at > end + 2 * REST_MS] == [], "then it rests"
    assert len([at for at in times if at > start]) >= 3


def test_the_other_view_asks_nothing_while_something_is_written(
    page: Page, site: Callable[..., Site]
) -> None:
    page.add_init_script(f"({WATCH_QUESTIONS})()")
    play, look = opened(page, site(delay=0.01))
    choose(page, "This run")
    page.keyboard.press("Escape")
    play.set(max_tokens=80)
    play.ask()
    look.open("cache")
    play.wait_tokens(80)
    play.wait_done()
    assert len(asked_at(page)) == 1


def test_a_failed_question_is_said_and_leaves_the_other_view(
    page: Page, own_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(info: Any, run: int) -> KvState:
        raise InvalidRequest("nobody counted the blocks", "kind")

    wrote(page, own_site())
    look = Playground(page).look.open("cache")
    with monkeypatch.context() as patch:
        patch.setattr(fake_inspection, "_kv_state", fail)
        choose(page, "All blocks")
        expect(look.message).to_have_text("This could not be shown: nobody counted the blocks")
        expect(page.locator(".kv-field")).not_to_be_visible()
        choose(page, "This run")
        expect(look.message).to_be_hidden()
        expect(page.locator(".kv-chart")).to_be_visible()
        assert look.csv()[0]["layout"] == "current"
    choose(page, "All blocks")
    expect(look.message).to_be_hidden()
    words = "4 of 128 blocks in use: this answer 3, others 2."
    expect(page.locator(".kv-summary")).to_have_text(words)


@pytest.mark.slow
def test_leaving_before_the_answer_shows_the_other_view_at_once(
    page: Page, own_site: Callable[..., Site]
) -> None:
    wrote(page, own_site(ask_seconds=2.5))
    look = Playground(page).look.open("cache")
    choose(page, "All blocks")
    expect(look.panel).to_have_attribute("aria-busy", "true")
    expect(look.source).to_have_text("Computing …")
    choose(page, "This run")
    expect(look.source).to_contain_text("counted by the engine for this run", timeout=1500)
    expect(page.locator(".kv-chart")).to_be_visible()
    choose(page, "All blocks")
    # The engine answers the question that was left first.
    expect(look.source).to_contain_text("Counted by the engine", timeout=15_000)
