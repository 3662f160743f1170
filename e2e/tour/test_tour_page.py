"""The page during the guided walk: the text waits, and all is left as it was."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.look.test_looks import open_page
from e2e.playground import Playground
from e2e.site import Site
from e2e.tour.card import TITLES, TourCard
from e2e.tour.walking import PINNED, start, walk_to, wrote

GIVEN = "async () => (await import('/static/js/view.js')).view.answer.segment.nGiven"
FOLLOWED = """async () => {
  const { view } = await import("/static/js/view.js");
  return view.answer.segment.branch.at;
}"""


# ---- the text that waits ---------------------------------------------------------------------

PACE = "Tokens a second"


def paces(play: Playground) -> list[float | None]:
    """Return the paces that were asked for, in order; None: as fast as it goes."""
    sent = [m for m in play.messages.sent if m["type"] == "generate" or "pace" in m]
    return [message.get("pace") for message in sent]


def at_the_slider(page: Page, site: Site) -> tuple[Playground, TourCard]:
    play = wrote(page, site)
    page.locator("#plot").focus()
    page.keyboard.press("t")
    walk_to(play.tour, TITLES.index("Move a slider") + 1)
    return play, play.tour


def test_the_text_waits_until_a_slider_is_moved(page: Page, site: Callable[..., Site]) -> None:
    play, tour = at_the_slider(page, site())
    expect(tour.text).to_contain_text("waits behind")
    expect(play.stats).to_contain_text("Paused before token")
    expect(page.locator("#tok-word")).to_have_text("Next token")
    n = play.tokens.count()
    assert n == page.evaluate(FOLLOWED) + 1 < 30
    play.slide("temperature", 0.3)  # and lets it go
    expect(page.get_by_label(PACE)).to_have_value("2")
    play.wait_tokens(n + 2)
    acted = [e for e in play.messages.events("updated") if e["params"]["temperature"] == 0.3]
    assert acted[0]["index"] == n - page.evaluate(GIVEN), "on the very next token"
    tour.next.click()
    tour.wait(len(TITLES))
    expect(page.get_by_label(PACE)).to_have_value("")
    play.wait_done()
    assert paces(play) == [None, 0, 2, None]


def test_leaving_at_the_slider_brings_the_chosen_pace_back(
    page: Page, site: Callable[..., Site]
) -> None:
    play, tour = at_the_slider(page, site(delay=0.05))
    expect(play.stats).to_contain_text("Paused before token")
    back = tour.card.get_by_role("button", name="Back")
    back.click()
    tour.wait(TITLES.index("Move a slider"))
    tour.next.click()
    expect(tour.text).to_contain_text("The text waits where it is.")
    page.keyboard.press("Escape")
    expect(tour.card).to_be_hidden()
    play.wait_done()
    assert paces(play)[-1] is None
    expect(page.locator("#version")).to_have_text("2/2")
    page.reload()
    expect(page.get_by_label(PACE)).to_have_value("")


def test_a_chosen_pace_neither_holds_the_tour_up_nor_is_lost(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site())
    page.get_by_label(PACE).select_option("by step")
    start(page).wait(1)
    assert paces(play) == [None]
    expect(page.get_by_label(PACE)).to_have_value("0")


# ---- leaving no trace ------------------------------------------------------------------------


def test_escape_puts_everything_back(page: Page, site: Callable[..., Site]) -> None:
    play = wrote(page, site())
    play.prompt.fill("half a thought")
    page.keyboard.press("Tab")
    play.look.open("cache")
    play.core.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("3")
    expect(page).to_have_url(re.compile("look=cache&token="))  # written once all of it is shown
    before, address = page_state(page), page.url
    page.keyboard.press("t")
    tour = play.tour
    walk_to(tour, 5)
    assert page_state(page) != before
    page.keyboard.press("Escape")
    expect(tour.card).to_be_hidden()
    expect(page.locator("#tour-rings i")).to_have_count(0)
    expect(play.core).to_be_focused()
    expect(page).to_have_url(address)
    assert page_state(page) == before
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    expect(play.look.tab("Cache")).to_have_attribute("aria-selected", "true")


def page_state(page: Page) -> dict[str, object]:
    return dict(
        page.evaluate(
            """async () => {
              const { view } = await import("/static/js/view.js");
              const { state } = await import("/static/js/state.js");
              const { pinned, row } = view;
              const draft = document.querySelector("[name=look-prompt]")?.checked ?? true;
              return { pinned, row, metric: state.metric, hash: location.hash, draft };
            }"""
        )
    )


def test_a_draft_in_the_composer_gives_way_and_comes_back(
    page: Page, site: Callable[..., Site]
) -> None:
    play = wrote(page, site())
    play.prompt.fill("half a thought")
    page.locator("#plot").focus()
    page.keyboard.press("t")
    tour = play.tour
    tour.wait(1)
    expect(page.get_by_role("radio", name="Last request")).to_be_checked()
    expect(page.locator("#look-draft")).to_have_value("Tell me a story")
    page.keyboard.press("Escape")
    play.look.open("tokens")
    expect(page.get_by_role("radio", name="Draft")).to_be_checked()
    expect(play.prompt).to_have_value("half a thought")


@pytest.mark.slow
def test_the_cache_shows_the_run_and_then_what_it_had_shown(
    page: Page, site: Callable[..., Site]
) -> None:
    wrote(page, site())
    Playground(page).look.open("cache")
    page.get_by_role("radio", name="All blocks").check(force=True)
    page.locator("#plot").focus()
    page.keyboard.press("t")
    tour = Playground(page).tour
    walk_to(tour, TITLES.index("The KV cache") + 1)
    expect(page.get_by_role("radio", name="This run")).to_be_checked()
    expect(page.locator("#tour-rings i").first).to_be_attached()
    page.keyboard.press("Escape")
    expect(page.get_by_role("radio", name="All blocks")).to_be_checked()


VIEWS = (
    ("tokens", "Neighbours", "Prompt"),
    ("lens", "Whole text", "Token"),
    ("timeline", "Turns", "Request"),
)
"""Instruments that the tour opens, a view that it does not speak of, and the one that it does."""
VIEW_TITLES = ("Text becomes tokens", "The prediction appears", "The cost of one token")
"""Steps that open them."""


def test_instruments_show_the_view_that_the_tour_speaks_of(
    page: Page, site: Callable[..., Site]
) -> None:
    wrote(page, site())
    look = Playground(page).look
    for name, other, _ in VIEWS:
        look.open(name).panel.get_by_role("radio", name=other, exact=True).check(force=True)
    page.locator("#plot").focus()
    page.keyboard.press("t")
    tour = Playground(page).tour
    views = look.panel.locator(".look-views:visible")
    spoken_of = dict(zip(VIEW_TITLES, VIEWS, strict=True))
    for at, title in enumerate(TITLES[: TITLES.index(VIEW_TITLES[-1]) + 1], start=1):
        tour.wait(at)
        if title in spoken_of:
            radio = views.get_by_role("radio", name=spoken_of[title][2], exact=True)
            expect(radio).to_be_checked()
            expect(page.locator("#tour-rings i").first).to_be_attached()
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Escape")
    for name, other, _ in VIEWS:
        radio = look.open(name).panel.get_by_role("radio", name=other, exact=True)
        expect(radio).to_be_checked()


def test_what_a_person_changes_meanwhile_stays(page: Page, site: Callable[..., Site]) -> None:
    play = wrote(page, site())
    play.core.focus()
    page.keyboard.press("t")
    tour = play.tour
    walk_to(tour, 3)
    page.get_by_role("radio", name="GPU time").check(force=True)
    play.look.open("timeline")
    play.tokens.nth(4).evaluate("(node) => node.click()")
    page.keyboard.press("Escape")
    expect(tour.card).to_be_hidden()
    expect(page.get_by_role("radio", name="GPU time")).to_be_checked()
    expect(play.look.tab("Timeline")).to_have_attribute("aria-selected", "true")
    assert page.evaluate(PINNED) == 4


def test_back_and_the_arrows(page: Page, site: Callable[..., Site]) -> None:
    wrote(page, site())
    page.locator("#plot").focus()
    page.keyboard.press("t")
    tour = Playground(page).tour
    tour.wait(1)
    back = tour.card.get_by_role("button", name="Back")
    expect(back).to_be_disabled()
    page.keyboard.press("ArrowLeft")
    tour.wait(1)
    tour.next.click()
    tour.wait(2)
    back.click()
    tour.wait(1)
    expect(tour.next).to_be_focused()
    page.keyboard.press("Enter")
    tour.wait(2)
    page.locator("#plot").focus()
    page.keyboard.press("ArrowRight")  # the core's own
    tour.wait(2)
    tour.card.get_by_role("button", name="End the tour").click()
    expect(tour.card).to_be_hidden()
