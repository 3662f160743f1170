"""The guided walk: thirteen steps whose figures are the engine's, and a page left as it was."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from e2e.bundled import bundled_site
from e2e.look.test_looks import open_page, violations
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from e2e.tour.card import TITLES, TourCard
from e2e.tour.figures import OPENS, Run

SEED = 5
PROMPT = "Tell me a story about a fox who finds a lantern"
SET_SEED = """async (seed) => {
  (await import("/static/js/state.js")).state.settings.seed = seed;
}"""
GIVEN = "async () => (await import('/static/js/view.js')).view.answer.segment.nGiven"
FOLLOWED = """async () => {
  const { view } = await import("/static/js/view.js");
  return view.answer.segment.branch.at;
}"""
PINNED = "async () => (await import('/static/js/view.js')).view.pinned"


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    """A site around the bundled model, which only these tests ask."""
    with bundled_site() as site:
        yield site


def start(page: Page) -> TourCard:
    """From the empty page, by keyboard."""
    page.get_by_role("button", name="Show me around").focus()
    page.keyboard.press("Enter")
    return Playground(page).tour


# ---- on the bundled model --------------------------------------------------------------------


@pytest.mark.slow
def test_every_figure_is_the_engine_s(page: Page, here: Site) -> None:
    play = Playground(page, here).open()
    messages = play.messages
    play.set(seed=SEED)
    tour = start(page)
    tour.wait(1)
    run = Run(here, messages, page, PROMPT, page.evaluate(PINNED))
    assert messages.events("accepted")[0]["params"]["max_tokens"] == len(run.tokens) == 64
    assert sum(c["before"] >= 0.05 for c in run.token["candidates"]) > 1, "it had rivals"
    word = run.label(run.token["id"])
    assert word.isalpha()
    assert len(word) >= 4
    assert run.index > 0
    for step, (title, instrument) in enumerate(zip(TITLES, OPENS, strict=True), start=1):
        tour.wait(step)
        expect(tour.title).to_have_text(title)
        assert tour.figures() == getattr(run, f"step_{step}")(), title
        for quoted in tour.words():
            assert quoted in {run.label(id) for id in (*run.ids, *run.waterfall["ids"].tolist())}
        check_instrument(page, instrument)
        tour.check_place()
        expect(tour.card.locator(":focus")).to_have_count(1)
        expect(page.locator("#tour-steps .done")).to_have_count(step - 1)
        page.keyboard.press("ArrowRight")
    tour.wait(len(TITLES))  # an arrow too many ends nothing
    page.keyboard.press("Enter")
    expect(tour.card).to_be_hidden()
    expect(page.locator("#turns")).to_be_focused()
    assert page.evaluate(PINNED) is None


def check_instrument(page: Page, name: str | None) -> None:
    look = Playground(page).look
    if name is None:
        expect(look.panel).to_be_hidden()
        return
    expect(look.tab(name)).to_have_attribute("aria-selected", "true")
    expect(look.message).to_be_hidden()


@pytest.mark.slow
def test_a_phone_has_the_card_under_the_page(page: Page, here: Site) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    page.emulate_media(reduced_motion="reduce")
    play = Playground(page, here).open()
    page.evaluate(SET_SEED, str(SEED))
    tour = start(page)
    for step in range(1, len(TITLES) + 1):
        tour.wait(step)
        tour.check_place()
        assert play.overflow() <= 0, step
        card = tour.card.bounding_box()
        assert card is not None
        assert card["x"] == 0
        assert card["width"] == 360
        assert abs(card["y"] + card["height"] - 640) <= 1
        if step in (1, 3, 7):
            assert violations(page) == [], step
        page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Done").click()
    expect(tour.card).to_be_hidden()
    expect(page.locator(".sampling")).to_be_hidden()
    expect(page.locator("#tabs")).to_be_visible()


@pytest.mark.parametrize(
    ("seed", "size"),
    [
        (1, (768, 1024)),
        (2, (1024, 768)),
        (3, (1366, 720)),
    ],
)
@pytest.mark.slow
def test_the_card_covers_nothing_it_speaks_about(
    page: Page, here: Site, seed: int, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    play = Playground(page, here).open()
    page.evaluate(SET_SEED, str(seed))
    tour = start(page)
    for step in range(1, len(TITLES) + 1):
        tour.wait(step)
        tour.check_place()
        assert play.overflow() <= 0, step
        tour.next.click() if step < len(TITLES) else None


# ---- beginning -------------------------------------------------------------------------------


def wrote(page: Page, site: Site, n: int = 30) -> Playground:
    play = open_page(page, site)
    play.set(max_tokens=n, seed=3)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    return play


def test_it_waits_for_the_text_and_says_so(page: Page, own_site: Callable[..., Site]) -> None:
    play = open_page(page, own_site(delay=0.5))
    tour = start(page)
    expect(tour.title).to_have_text("One moment")
    expect(tour.text).to_contain_text(re.compile(r"Generating: [2-9] tokens so far"))
    expect(tour.next).to_be_hidden()
    play.stop.click()
    tour.wait(1)


@pytest.mark.quick
def test_a_run_that_is_there_is_walked_through(page: Page, site: Callable[..., Site]) -> None:
    messages = MessageLog(page)
    wrote(page, site())
    page.keyboard.press("Escape")
    page.locator("#plot").focus()
    page.keyboard.press("t")
    tour = Playground(page).tour
    tour.wait(1)
    asked = [message["type"] for message in messages.sent]
    assert asked.count("generate") == 1, "nothing more is written"


@pytest.mark.slow
def test_a_branch_is_followed_with_its_own_draws(page: Page, here: Site) -> None:
    play = Playground(page, here).open()
    play.set(max_tokens=40, seed=SEED)
    play.ask(PROMPT)
    play.wait_tokens(40)
    play.wait_done()
    play.tokens.nth(6).click()
    page.locator("#cands li .w:enabled").nth(1).click()
    expect(page.locator("#version")).to_have_text("2/2")
    play.wait_done()
    page.locator("#plot").focus()
    page.keyboard.press("t")
    tour = play.tour
    tour.wait(1)
    assert page.evaluate(PINNED) > 7, "a token that was drawn, not one that was put in"
    walk_to(tour, 9)
    expect(tour.text).to_contain_text("It fell between")


def test_the_help_starts_it_and_gets_the_keyboard_back(
    page: Page, site: Callable[..., Site]
) -> None:
    wrote(page, site())
    page.locator("#help-open").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="Reading the page").get_by_text("Show me around").click()
    tour = Playground(page).tour
    tour.wait(1)
    page.keyboard.press("Escape")
    expect(tour.card).to_be_hidden()
    expect(page.locator("#help-open")).to_be_focused()


def test_a_model_without_a_chat_template_goes_on_with_a_text(
    page: Page, site: Callable[..., Site]
) -> None:
    messages = MessageLog(page)
    open_page(page, site(chat=False))
    start(page).wait(1)
    (asked,) = (message for message in messages.sent if message["type"] == "generate")
    assert asked["prompt"] == "Once upon a time, a fox found a lantern in the wood."
    assert "messages" not in asked


def test_its_own_run_is_measured_and_the_switch_stays(
    page: Page, site: Callable[..., Site]
) -> None:
    messages = MessageLog(page)
    open_page(page, site())
    page.locator("#capture").uncheck(force=True)
    tour = start(page)
    tour.wait(1)
    assert next(m for m in messages.sent if m["type"] == "generate")["capture"] is True
    expect(page.locator("#capture")).not_to_be_checked()
    expect(page.locator("#max_tokens")).to_have_value("256")


# ---- what cannot be had ----------------------------------------------------------------------


def test_what_was_not_measured_is_said(page: Page, site: Callable[..., Site]) -> None:
    open_page(page, site()).set(max_tokens=20, seed=3)
    page.locator("#capture").uncheck(force=True)
    play = Playground(page)
    play.ask()
    play.wait_tokens(20)
    play.wait_done()
    page.locator("#plot").focus()
    page.keyboard.press("t")
    tour = play.tour
    for step, missing in [(2, "Its norm"), (3, "Its growth"), (6, "Its update")]:
        while page.locator("#tour-count").inner_text() != f"{step} / {len(TITLES)}":
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(50)
        tour.wait(step)
        expect(tour.text).to_contain_text(f"{missing} was not measured: capture was off.")


def walk_to(tour: TourCard, step: int) -> None:
    for at in range(1, step):
        tour.wait(at)
        tour.page.keyboard.press("ArrowRight")
    tour.wait(step)


@pytest.mark.slow
def test_greedy_draws_nothing(page: Page, here: Site) -> None:
    Playground(page, here).open()
    page.get_by_role("button", name="Greedy").click()
    tour = start(page)
    walk_to(tour, 8)
    expect(tour.text).to_contain_text("Temperature 0 takes the largest share")
    page.keyboard.press("ArrowRight")
    tour.wait(9)
    expect(tour.text).to_contain_text("With temperature 0 nothing is drawn")


def test_another_draw_than_the_run_s_is_not_told_as_the_run_s(
    page: Page, site: Callable[..., Site]
) -> None:
    """The fake engine answers about other logits than it wrote with."""
    wrote(page, site())
    page.locator("#plot").focus()
    page.keyboard.press("t")
    tour = Playground(page).tour
    walk_to(tour, 9)
    expect(tour.text).to_contain_text("the engine draws another token than the run did")


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
