"""The page on a phone, and on a window that becomes as narrow as one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from playwright.sync_api import Page, expect

from e2e.look.test_looks import open_page
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
