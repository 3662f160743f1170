"""The page on a phone, and on a window that becomes as narrow as one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.look.test_looks import open_page
from e2e.playground import Playground
from e2e.site import Site

INKED = """(canvas) => canvas.getContext("2d")
  .getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte > 0)"""


def test_the_ribbon_is_drawn_when_the_window_becomes_narrow(
    page: Page, site: Callable[..., Site]
) -> None:
    """The canvas has no size before, and nothing else asks for a drawing."""
    page.set_viewport_size({"width": 1280, "height": 800})
    play = open_page(page, site())
    play.ask("x" * 20)
    play.wait_done()
    page.set_viewport_size({"width": 360, "height": 740})
    ribbon = page.locator("#ribbon")
    expect(ribbon).to_be_visible()
    page.wait_for_function(f"() => ({INKED})(document.getElementById('ribbon'))")


@pytest.mark.quick
def test_nothing_overlaps_under_a_long_prompt(page: Page, site: Callable[..., Site]) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    play = open_page(page, site())
    play.prompt.fill("word " * 3000)
    expect(page.locator("#gauge")).to_have_attribute("data-level", "full")
    boxes = [page.locator(name).bounding_box() for name in ("#mode", "#gauge", "#send")]
    assert all(boxes)
    for left, right in pairwise(boxes):
        assert left["x"] + left["width"] <= right["x"]
    expect(page.locator("#count")).to_be_hidden()


def test_the_text_is_written_above_an_open_panel(
    page: Page, play: Callable[..., Playground]
) -> None:
    """A slider's effect is seen while it is moved, and a press of Step is within reach."""
    page.set_viewport_size({"width": 390, "height": 844})
    here = play(delay=0.002)
    page.get_by_label("Tokens a second").select_option("by step")
    here.ask("a\n" * 30)
    for panel in ("sampling", "next"):
        page.locator(f"#tabs [data-sheet-name={panel}]").click()
        top = bottom_and_top(page.locator(f".sheet[data-sheet={panel}]"))[1]
        for _ in range(3):
            n = here.tokens.count() + 1
            page.get_by_role("button", name="Step").click()
            expect(here.tokens).to_have_count(n)
        assert bottom_and_top(here.tokens.last)[0] <= bottom_and_top(here.stats)[1] < top
        page.locator(f"#tabs [data-sheet-name={panel}]").click()
    expect(page.locator("#prompt")).to_be_visible()


def test_the_row_of_instruments_is_seen_to_go_on(
    page: Page, play: Callable[..., Playground]
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    here = play()
    tabs = page.locator("#look-tabs [role=tab]:visible")
    for name in ("tokens", "lens", "filters", "weights"):
        here.look.open(name)
        at = tabs.evaluate_all("(all) => all.findIndex((tab) => tab.ariaSelected === 'true')")
        box = tabs.nth(at + 1).bounding_box()
        assert box
        assert box["x"] < 360 - 8, f"what follows {name} begins in sight"


def test_an_example_ends_with_its_token_in_sight(
    page: Page, play: Callable[..., Playground]
) -> None:
    """Not only with the end of the text, under which the panel of that token is open."""
    page.set_viewport_size({"width": 360, "height": 740})
    here = play(delay=0.02, script=("a\n" * 30,))
    page.get_by_role("button", name="The capital of France is").click()
    here.wait_tokens(12)
    here.wait_done()
    token = page.locator(".answer .tok.on")
    expect(token).to_have_attribute("data-i", "0")
    expect(token).to_be_in_viewport(ratio=1)


def test_a_notice_is_seen_over_an_open_panel(page: Page, site: Callable[..., Site]) -> None:
    """Besides it, a phone has only a dot that says that the connection is lost."""
    page.set_viewport_size({"width": 360, "height": 740})
    here = Playground(page, site())
    here.route_sockets()
    here.open().ask()
    here.wait_done()
    for panel in ("next", "sampling", "layers"):
        page.locator(f"#tabs [data-sheet-name={panel}]").click()
        expect(page.locator("#composer")).to_be_hidden()
        here.offline = True
        here.cut()
        expect(here.notice).to_contain_text("The server cannot be reached")
        top = bottom_and_top(page.locator(f".sheet[data-sheet={panel}]"))[1]
        assert bottom_and_top(here.notice)[0] <= top
        here.offline = False
        here.wait_ready()
        expect(here.notice).to_be_hidden()


def bottom_and_top(box: Locator) -> tuple[float, float]:
    found = box.bounding_box()
    assert found
    return found["y"] + found["height"], found["y"]


def test_the_start_page_has_room_for_its_invitation(
    page: Page, play: Callable[..., Playground]
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    play()
    button = page.get_by_role("button", name="Show me around")
    below_examples = bottom_and_top(page.locator("#turns"))[0]
    assert bottom_and_top(button)[1] >= below_examples
    invitation, pace = (page.locator(name).bounding_box() for name in (".invite", "#pace"))
    assert invitation
    assert pace
    assert invitation["x"] + invitation["width"] <= pace["x"]
