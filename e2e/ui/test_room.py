"""Room to read: the border between transcript and core sample, and the page with only the text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Download, Locator, Page, expect

from e2e.look.test_looks import violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES


def divider(page: Page) -> Locator:
    return page.get_by_role("separator", name="Border between transcript and core sample")


def height(page: Page, part: str) -> float:
    page.evaluate(TWO_FRAMES)
    box = page.locator(part).bounding_box()
    return box["height"] if box else 0


def value(page: Page, name: str = "now") -> int:
    page.evaluate(TWO_FRAMES)
    return int(divider(page).get_attribute(f"aria-value{name}") or "")


@pytest.mark.parametrize("n_layers", [8, 30])
def test_the_transcript_is_high_enough_to_read(
    page: Page, play: Callable[..., Playground], n_layers: int
) -> None:
    play(n_layers=n_layers)
    assert height(page, "#turns") >= 340


def test_the_border_is_moved_by_keys_and_remembered(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    here.write("One", 6)
    usual = height(page, ".talk")
    divider(page).focus()
    for key in ("ArrowDown", "ArrowDown", "PageDown", "ArrowUp"):
        page.keyboard.press(key)
    moved = height(page, ".talk")
    assert moved == usual + 16 + 96
    assert value(page) == moved
    foot = page.locator(".core").bounding_box()
    run = page.locator(".run").bounding_box()
    assert foot is not None
    assert run is not None
    assert foot["y"] + foot["height"] == run["y"], "nothing is cut off"
    page.reload()
    here.wait_ready()
    assert height(page, ".talk") == moved
    divider(page).focus()
    page.keyboard.press("End")
    assert height(page, ".talk") == value(page) == value(page, "max")
    page.keyboard.press("Home")
    assert height(page, ".talk") == value(page) == value(page, "min")
    divider(page).dblclick()
    assert height(page, ".talk") == usual
    page.reload()
    here.wait_ready()
    assert height(page, ".talk") == usual


@pytest.mark.parametrize("width", [1440, 1100])
def test_the_border_is_dragged(page: Page, play: Callable[..., Playground], width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    play()
    usual = height(page, ".talk")
    box = divider(page).bounding_box()
    assert box is not None
    x, y = box["x"] + 200, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y + 10)
    page.mouse.move(x, y + 60)
    page.mouse.up()
    page.mouse.move(x, y - 300)
    assert height(page, ".talk") == usual + 60
    assert value(page) == usual + 60


@pytest.mark.parametrize("width", [1440, 1100])
def test_a_key_gives_the_page_to_the_text_and_back(
    page: Page, play: Callable[..., Playground], width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    here = play()
    here.write("One", 6)
    here.look.open("tokens")
    page.locator("#turns").focus()
    page.keyboard.press("f")
    expect(here.look.panel).to_be_hidden()
    for part in ("sampling", "next", "core", "layers", "run"):
        expect(page.locator(f".bench > .{part}")).to_be_hidden()
    assert height(page, ".talk") > 780
    assert violations(page) == []
    page.reload()
    here.wait_ready()
    expect(page.locator(".core")).to_be_hidden()
    page.get_by_role("button", name="Show all panels").click()
    expect(page.locator(".core")).to_be_visible()
    expect(page.locator("#turns")).to_be_focused()
    page.get_by_role("button", name="Show only the text").click()
    expect(page.locator(".core")).to_be_hidden()
    here.look.open("tokens")
    expect(page.locator(".core")).to_be_visible()


@pytest.mark.quick
def test_a_letter_in_the_composer_is_a_letter(page: Page, play: Callable[..., Playground]) -> None:
    here = play()
    expect(here.prompt).to_be_focused()
    page.keyboard.type("Tell me of socks? 1 2 3 fcmlo")
    expect(here.prompt).to_have_value("Tell me of socks? 1 2 3 fcmlo")
    expect(page.locator("dialog[open]")).to_have_count(0)
    expect(here.tour.card).to_be_hidden()
    expect(page.locator(".core")).to_be_visible()


def test_a_letter_in_a_choice_chooses(page: Page, play: Callable[..., Playground]) -> None:
    play()
    downloads: list[Download] = []
    page.on("download", lambda download: downloads.append(download))
    choice = page.get_by_label("When context is full")
    choice.focus()
    page.keyboard.press("s")
    expect(choice).to_have_value("summarize")
    page.keyboard.press("f")
    page.keyboard.press("c")
    page.evaluate(TWO_FRAMES)
    expect(page.locator(".core")).to_be_visible()
    expect(page.locator("dialog[open]")).to_have_count(0)
    assert not downloads


def test_no_keyboard_comes_up_by_itself(context: BrowserContext, site: Callable[..., Site]) -> None:
    browser = context.browser
    assert browser is not None
    phone = browser.new_context(has_touch=True, is_mobile=True)
    try:
        here = Playground(phone.new_page(), site()).open()
        expect(here.prompt).not_to_be_focused()
    finally:
        phone.close()
