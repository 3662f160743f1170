"""The address of what the page shows: going back and forward, links, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error, Page, expect

from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until

SAVED = Path(__file__).parents[1] / "replay" / "saved" / "v3.json"
SHOWN = {"chat": "a b", "model": "owner/model", "look": "lens", "token": "p3"}


def test_it_is_written_and_read(call: Callable[..., Any]) -> None:
    hash = call("ui/address", "writeAddress", SHOWN)
    assert hash == "#chat=a%20b&model=owner/model&look=lens&token=p3"
    assert call("ui/address", "readAddress", hash) == SHOWN
    assert call("ui/address", "writeAddress", {"chat": None, "look": None, "token": ""}) == ""
    for none in ("", "#", "#prompt"):
        assert call("ui/address", "readAddress", none) is None


def test_a_token_has_the_number_that_people_see(call: Callable[..., Any]) -> None:
    for token, index in {"1": 0, "12": 11, "p1": -7, "p7": -1}.items():
        assert call("ui/address", "tokenAt", token, 7) == index
        assert call("ui/address", "nameOfToken", index, 7) == token
    assert call("ui/address", "tokenAt", "p9", 7) == -1


@pytest.mark.quick
@pytest.mark.parametrize(
    "hash",
    [
        "#look=a&look=b",
        "#run=1",
        "#token=0",
        "#token=-1",
        "#token=1e9",
        "#chat=%E0%A4%A",
        "#=x",
        "#look=" + "x" * 2000,
    ],
    ids=range(8),
)
def test_what_is_no_address_is_refused(call: Callable[..., Any], hash: str) -> None:
    with pytest.raises(Error, match="It"):
        call("ui/address", "readAddress", hash)


@pytest.mark.quick
@pytest.mark.parametrize(
    "replay",
    [
        "https://evil.example/a.json",
        "//evil.example/a.json",
        "javascript:alert(1)",
        "data:,x",
        "http://glass.example:81/a",
        "http://me@glass.example/a",
        "\\\\evil.example\\a",
        "http://",
    ],
)
def test_a_replay_of_another_site_is_refused(call: Callable[..., Any], replay: str) -> None:
    with pytest.raises(Error, match="Its replay"):
        call("ui/address", "replayAddress", replay, "http://glass.example/")


@pytest.mark.quick
def test_back_and_forward_go_between_conversations_and_instruments(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    here.write("One", 4)
    (first,) = here.drawer.wait_stored(1)
    page.wait_for_url(re.compile(f"chat={first['id']}"))
    assert "model=" in page.url
    here.look.tab("Tokens").click()
    page.wait_for_url(re.compile("look=tokens$"))
    page.keyboard.press("Escape")
    here.start_new()
    here.write("Two", 4)
    here.drawer.wait_stored(2)
    page.wait_for_url(re.compile(f"chat=(?!{first['id']})"))
    page.go_back()
    expect(page.locator(".said")).to_have_text("One")
    expect(here.look.panel).to_be_hidden()
    page.go_back()
    expect(here.look.panel).to_be_visible()
    page.go_forward()
    expect(here.look.panel).to_be_hidden()
    page.go_forward()
    expect(page.locator(".said")).to_have_text("Two")


def test_a_link_opens_the_conversation_the_instrument_and_the_token(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    here.write("One", 8)
    here.drawer.wait_stored(1)
    here.tokens.nth(2).click()
    here.look.tab("Tokens").click()
    page.wait_for_url(re.compile("look=tokens&token=3$"))
    link = page.url
    here.start_new()
    page.goto("about:blank")
    page.goto(link)
    here.wait_ready()
    expect(page.locator(".said")).to_have_text("One")
    expect(here.look.panel).to_be_visible()
    expect(here.core).to_have_attribute("aria-valuenow", "3")
    assert page.url == link


NEW_AND_RELOAD = """async () => {
  const { startNew } = await import("/static/js/conversations/library.js");
  startNew();
  location.reload();
}"""
"""Loads the page again before the address of the new conversation is written."""


def test_a_reload_shows_what_was_shown_though_the_address_is_older(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    here.write("One", 4)
    here.drawer.wait_stored(1)
    page.wait_for_url(re.compile("chat="))
    with page.expect_event("load"):
        page.evaluate(NEW_AND_RELOAD)
    here.wait_ready()
    page.wait_for_url(re.compile("^((?!chat=).)*$"))
    expect(page.locator(".said")).to_have_count(0)


@pytest.mark.parametrize(
    ("hash", "said"),
    [
        ("#chat=unknown", "deleted"),
        ("#look=nothing", "instrument"),
        ("#replay=https://evil.example/x.json", "another site"),
        ("#replay=static/none.json", "404"),
        ("#replay=static/mark.svg", "not a replay"),
        ("#model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", "<img src=x onerror=alert(1)>"),
        ("#token=x", "not a number"),
    ],
)
def test_a_bad_link_says_so_and_does_nothing_else(
    page: Page, site: Callable[..., Site], allowed_console: list[str], hash: str, said: str
) -> None:
    allowed_console.append("404")
    here = Playground(page, site())
    page.goto(f"{here.url}{hash}")
    here.wait_ready()
    expect(here.notice).to_contain_text("This link cannot be followed")
    expect(here.notice).to_contain_text(said)
    expect(page.locator("body")).to_have_attribute("data-phase", "empty")
    expect(here.look.panel).to_be_hidden()
    here.write("One", 4)


def test_a_saved_replay_of_the_site_opens_by_its_address(
    page: Page, site: Callable[..., Site]
) -> None:
    here = Playground(page, site())
    page.route("**/saved/v3.json", lambda route: route.fulfill(path=SAVED))
    page.goto(f"{here.url}#replay=saved/v3.json")
    bar = page.get_by_test_id("playback")
    expect(bar).to_be_visible()
    expect(bar).to_contain_text("v3.json")
    assert page.url.endswith("#replay=saved/v3.json")
    page.get_by_role("button", name="Leave replay").click()
    until(page, lambda: "replay=" not in page.url, "an address without the replay")


@pytest.mark.parametrize("engine", ["failed", "lost", "late"])
def test_a_replay_waits_for_no_engine(
    page: Page, site: Callable[..., Site], allowed_console: list[str], engine: str
) -> None:
    here = Playground(page, site(fail="out of memory") if engine == "failed" else site())
    allowed_console.append("WebSocket")
    if engine != "failed":
        here.route_sockets()
        here.offline = True
    page.route("**/saved/v3.json", lambda route: route.fulfill(path=SAVED))
    page.goto(f"{here.url}#replay=saved/v3.json&look=tokens&token=2")
    expect(page.get_by_test_id("playback")).to_contain_text("v3.json")
    expect(here.look.panel).to_be_visible()
    expect(here.core).to_have_attribute("aria-valuenow", "2")
    page.keyboard.press("Escape")
    if engine == "late":
        here.offline = False
        page.get_by_role("button", name="Leave replay").click()
        here.wait_ready()
        here.write("One", 4)
    else:
        page.evaluate("() => { location.hash = '#replay=static/mark.svg' }")
        expect(here.notice).to_contain_text("not a replay")
        expect(page.get_by_test_id("playback")).to_contain_text("v3.json")
