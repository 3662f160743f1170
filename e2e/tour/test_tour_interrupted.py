"""The guided walk when line, engine or run change, and how it looks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.tour.card import TITLES
from e2e.tour.walking import start, walk_to, wrote

# ---- when the world goes on ------------------------------------------------------------------


@pytest.mark.slow
def test_a_lost_line_is_waited_for(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append("WebSocket connection to")
    play = Playground(page, site())
    play.route_sockets()
    play.open()
    tour = start(page)
    walk_to(tour, 3)
    play.offline = True
    play.cut()
    expect(play.notice).to_contain_text("The server cannot be reached")
    page.keyboard.press("ArrowRight")
    expect(tour.title).to_have_text("Attention looks back")
    expect(tour.text).to_contain_text("continues automatically once it can")
    page.keyboard.press("ArrowLeft")
    expect(tour.text).to_contain_text("residual stream")  # what was measured is still here
    page.keyboard.press("ArrowRight")
    play.offline = False
    expect(tour.text).to_contain_text("heads distributes its attention", timeout=15_000)


def test_a_walk_that_cannot_be_fetched_says_why(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console += ["Failed to load resource", "Unexpected token"]
    play = open_page(page, site())
    guide = "**/tour/guide.js"
    page.route(guide, lambda route: route.abort())
    tour = start(page)
    expect(play.notice).to_contain_text("The tour could not start")
    expect(play.notice).to_contain_text("The server cannot be reached.")
    play.notice.get_by_role("button", name="Dismiss").click()
    expect(play.notice).to_be_hidden()
    page.unroute(guide)
    broken = {"body": "export const startTour = (;", "content_type": "text/javascript"}
    page.route(guide, lambda route: route.fulfill(**broken))
    start(page)
    expect(play.notice).to_contain_text("Unexpected token")
    expect(tour.card).to_be_hidden()


@pytest.mark.slow
def test_an_engine_that_restarts_is_waited_for(page: Page, own_site: Callable[..., Site]) -> None:
    here = own_site(process=True, load_seconds=1.5)
    play = Playground(page, here).open()
    play.set(max_tokens=20)
    tour = start(page)
    walk_to(tour, 3)
    os.kill(here.engine.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    expect(play.notice).to_contain_text("The engine is restarting")
    page.keyboard.press("ArrowRight")
    expect(tour.text).to_contain_text("continues automatically once it can")
    expect(tour.text).to_contain_text("heads distributes its attention", timeout=15_000)


def test_a_new_chat_ends_it_politely(page: Page, site: Callable[..., Site]) -> None:
    play = wrote(page, site())
    page.locator("#plot").focus()
    page.keyboard.press("t")
    tour = play.tour
    walk_to(tour, 4)
    page.keyboard.press("Control+Shift+O")
    expect(tour.title).to_have_text("The tour ends here")
    expect(tour.text).to_have_text("The run it followed is no longer on the page.")
    expect(page.locator("#tour-rings i")).to_have_count(0)
    tour.card.get_by_role("button", name="Close").click()
    expect(tour.card).to_be_hidden()
    expect(play.look.panel).to_be_hidden()
    play.ask("Another one")
    play.wait_tokens(2)


@pytest.mark.slow
def test_a_run_goes_on_under_it(page: Page, own_site: Callable[..., Site]) -> None:
    play = open_page(page, own_site(delay=0.02))
    play.set(max_tokens=400)
    play.ask()
    play.wait_tokens(3)
    page.locator("#plot").focus()
    page.keyboard.press("t")
    tour = play.tour
    tour.wait(1)
    n = len(play.numbers())
    assert n >= 64
    walk_to(tour, 11)
    expect(tour.text).to_contain_text("could not be measured: a run is in progress")
    assert len(play.numbers()) > n
    page.keyboard.press("Escape")
    expect(tour.card).to_be_hidden()
    expect(page.locator("body")).to_have_attribute("data-writing", "")


# ---- how it looks ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_axe_finds_nothing_in_any_step(page: Page, site: Callable[..., Site], theme: str) -> None:
    open_page(page, site(), color_scheme=theme)
    tour = start(page)
    for step in range(1, len(TITLES) + 1):
        tour.wait(step)
        page.wait_for_timeout(300)
        assert violations(page) == [], step
        page.keyboard.press("ArrowRight")


def test_rings_do_not_move_by_themselves(page: Page, site: Callable[..., Site]) -> None:
    open_page(page, site(), reduced_motion="reduce")
    tour = start(page)
    tour.wait(1)
    tour.check_place()
    moving = page.locator("#tour-rings i").first.evaluate(
        "(n) => { const s = getComputedStyle(n); return [s.animationName, s.transitionDuration]; }"
    )
    assert moving == ["none", "0s"]


def test_each_step_is_told_once(page: Page, site: Callable[..., Site]) -> None:
    """The live region is quiet while a step is computed, and holds title and sentences then."""
    open_page(page, site())
    tour = start(page)
    walk_to(tour, 4)
    said = tour.card.locator("[aria-live=polite]")
    expect(said).to_have_attribute("aria-atomic", "true")
    expect(said).to_contain_text("Attention looks back")
    expect(said).to_contain_text("the largest weight is in head")
    expect(tour.card).to_have_accessible_name("Attention looks back")
