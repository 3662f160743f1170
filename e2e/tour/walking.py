"""Beginning the tour, and walking it."""

from __future__ import annotations

from playwright.sync_api import Page

from e2e.look.test_looks import open_page
from e2e.playground import Playground
from e2e.site import Site
from e2e.tour.card import TourCard

PINNED = "async () => (await import('/static/js/view.js')).view.pinned"


def start(page: Page) -> TourCard:
    """From the empty page, by keyboard."""
    page.get_by_role("button", name="Show me around").focus()
    page.keyboard.press("Enter")
    return Playground(page).tour


def wrote(page: Page, site: Site, n: int = 30) -> Playground:
    play = open_page(page, site)
    play.set(max_tokens=n, seed=3)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    return play


def walk_to(tour: TourCard, step: int) -> None:
    for at in range(1, step):
        tour.wait(at)
        tour.page.keyboard.press("ArrowRight")
    tour.wait(step)
