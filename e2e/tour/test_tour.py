"""The guided walk: thirteen steps whose figures are the engine's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from e2e.bundled import bundled_site
from e2e.chat.answer_options import AnswerOptions
from e2e.look.test_looks import open_page, violations
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from e2e.tour.card import TITLES
from e2e.tour.figures import OPENS, Run
from e2e.tour.walking import PINNED, start, walk_to, wrote

SEED = 5
PROMPT = "Tell me a story about a fox who finds a lantern"
SET_SEED = """async (seed) => {
  (await import("/static/js/state.js")).state.settings.seed = seed;
}"""


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    """A site around the bundled model, which only these tests ask."""
    with bundled_site() as site:
        yield site


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


def test_a_run_with_a_format_and_a_watermark_is_drawn_again_alike(page: Page, here: Site) -> None:
    play = Playground(page, here).open()
    note = {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]}
    play.set(max_tokens=60, seed=SEED, temperature=1.0, watermark_bias=4.0, hashing_key=77)
    AnswerOptions(play).format("JSON schema", json.dumps(note | {"additionalProperties": False}))
    play.ask(PROMPT)
    play.wait_tokens(1)
    play.wait_done()
    page.locator("#plot").focus()
    page.keyboard.press("t")
    tour = play.tour
    walk_to(tour, 9)
    expect(tour.text).not_to_contain_text("the engine drew a different token")
    expect(tour.text).to_contain_text(re.compile("It fell between|A watermark moves their shares"))


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
    expect(tour.text).to_contain_text("the engine drew a different token")
