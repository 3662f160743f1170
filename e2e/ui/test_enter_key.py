"""Enter, Escape and the arrows while an input method converts what is typed: they are its own.

Browsers report such a key as part of a composition, or, Safari's Enter after it, by its code only.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.chat.test_edit_message import begin
from e2e.look.test_looks import open_page
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES
from tests.app.fake_encoder import INFO

PRESS = """(field, [key, isComposing]) => !field.dispatchEvent(new KeyboardEvent("keydown",
  {key, isComposing, keyCode: 229, bubbles: true, cancelable: true}))"""
TEXT = "にほんご"


def press(field: Locator, *keys: str) -> None:
    """Press keys that an input method handles."""
    for key in keys or ("Enter", "Escape"):
        for is_composing in (True, False):
            assert not field.evaluate(PRESS, [key, is_composing]), f"{key} was taken"
    field.page.evaluate(TWO_FRAMES)


def n_requests(play: Playground) -> int:
    return len([message for message in play.messages.sent if message["type"] == "generate"])


@pytest.mark.quick
def test_they_neither_send_nor_leave_a_message(page: Page, play: Callable[..., Playground]) -> None:
    here = play()
    here.prompt.fill(TEXT)
    press(here.prompt)
    expect(here.prompt).to_have_value(TEXT)
    assert n_requests(here) == 0
    here.set(max_tokens=4)
    here.prompt.press("Enter")
    here.wait_tokens(4)
    here.wait_done()
    edit = begin(page, TEXT)
    press(edit)
    expect(edit).to_be_visible()
    assert n_requests(here) == 1


@pytest.mark.quick
def test_they_leave_a_search_and_a_name_alone(page: Page, play: Callable[..., Playground]) -> None:
    here = play()
    here.write("One", 4)
    here.drawer.wait_stored(1)
    here.drawer.show()
    expect(here.drawer.rows).to_have_count(1)
    press(here.drawer.search, "Enter", "ArrowDown")
    expect(here.drawer.dialog).to_be_visible()
    expect(here.drawer.search).to_be_focused()
    here.drawer.rows.focus()
    page.keyboard.press("F2")
    name = page.get_by_role("textbox", name="Name of the conversation")
    name.fill(TEXT)
    press(name)
    expect(name).to_be_visible()
    name.press("Enter")
    expect(here.drawer.titles).to_have_text(TEXT)


@pytest.mark.parametrize("tab", ["tokens", "compare"])
def test_they_send_nothing_from_an_instrument(
    page: Page, play: Callable[..., Playground], tab: str
) -> None:
    here = play()
    here.look.open(tab)
    field = page.locator("#look textarea").first
    field.fill(TEXT)
    press(field, "Enter")
    expect(field).to_have_value(TEXT)
    assert n_requests(here) == 0


def test_they_search_nothing(page: Page, site: Callable[..., Site]) -> None:
    look = open_page(page, site(embedding=INFO)).look.open("retrieval")
    look.panel.locator(".look-views label", has_text="Question").click()
    searches: list[str] = []
    page.on("request", lambda request: searches.append(request.url))
    field = look.panel.get_by_label("Your question")
    field.fill(TEXT)
    press(field, "Enter")
    assert not [url for url in searches if url.endswith("/api/retrieval/search")]
