"""Conversations that were left while they were written: their runs go on and are found again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.conversations.test_conversations import STORAGE_FULL
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until

FOX = "Tell me of a fox"
HARE = "Tell me of a hare"
LONG = 120
UNENDING = 1000
"""Tokens of a run that still writes after the page was searched for violations."""
ASK_AND_LEAVE = """async (text) => {
  const { submitPrompt } = await import("/static/js/chat/session.js");
  const { startNew } = await import("/static/js/conversations/library.js");
  submitPrompt(text);
  startNew();
}"""
"""Leaves a conversation before the server has answered."""

UNKEPT = "async () => (await import('/static/js/state.js')).state.unkept?.code"
UNSAVED = "async () => (await import('/static/js/conversations/keeper.js')).isUnsaved()"


@pytest.fixture
def slow(request: pytest.FixtureRequest, site: Callable[..., Site]) -> Site:
    """A site that writes a token in 0.03 s, or in the seconds that a test is parametrized with."""
    return site(delay=getattr(request, "param", 0.03))


@pytest.fixture
def play(page: Page, slow: Site) -> Playground:
    """A page that has asked for a long answer and left it."""
    here = Playground(page, slow)
    here.route_sockets()
    here.open()
    here.set(max_tokens=LONG, seed=5)
    here.ask(FOX)
    here.wait_tokens(4)
    here.start_new()
    return here


def row_of(play: Playground, title: str) -> Locator:
    return play.drawer.dialog.locator(".kept").filter(has_text=title)


def expect_whole(play: Playground) -> None:
    """The answer is that of a run that was never left, with its instruments."""
    play.wait_tokens(LONG)
    play.wait_done()
    params = play.page.evaluate("() => JSON.parse(localStorage['tokenglass.settings']).settings")
    alone = play.site.reference(FOX, **{**params, "seed": 5, "stop": (), "max_tokens": LONG})
    assert play.text() == "".join(token.text for token in alone)
    assert play.playback.state()["layers"], "the layers of its newest token"


@pytest.mark.parametrize("slow", [0.1], indirect=True)  # it must still write after all this
def test_one_goes_on_while_another_is_written(play: Playground) -> None:
    play.write(HARE, 6)
    own = play.text()
    drawer = play.drawer.show()
    fox = row_of(play, FOX)
    expect(fox).to_have_attribute("data-phase", "running")
    expect(fox).to_contain_text("writing, ")
    expect(row_of(play, HARE)).to_have_attribute("data-phase", "")
    before = fox.locator(".kept-phase").inner_text()
    expect(fox.locator(".kept-phase")).not_to_have_text(before)
    drawer.open(FOX)
    expect(play.page.locator("body")).to_have_attribute("data-writing", "")
    expect_whole(play)
    drawer.open(HARE)
    assert play.text() == own


def test_one_that_finished_unseen_is_marked_until_it_is_opened(play: Playground) -> None:
    button = play.page.get_by_role("button", name="Conversations", exact=True)
    expect(button).to_have_accessible_description("Other conversations: 1 being written")
    expect(button).to_have_accessible_description("Other conversations: 1 finished")
    expect(play.page.locator("#live-status")).to_have_text(f"“{FOX}” is finished")
    play.page.reload()
    play.wait_ready()
    play.drawer.show()
    expect(row_of(play, FOX)).to_contain_text("finished")
    play.drawer.open(FOX)
    expect_whole(play)
    expect(button).to_have_accessible_description("")


def test_a_run_that_was_left_survives_a_reload(play: Playground) -> None:
    play.page.reload()
    expect_followed(play)


def test_a_run_that_was_left_survives_a_lost_connection(play: Playground) -> None:
    play.cut()
    expect(play.page.locator("body")).to_have_attribute("data-engine", "lost")
    expect_followed(play)


def expect_followed(play: Playground) -> None:
    play.wait_ready()
    play.drawer.show()
    expect(row_of(play, FOX)).to_have_attribute("data-phase", "running")
    play.drawer.open(FOX)
    expect_whole(play)


def test_one_that_cannot_be_stored_is_not_the_pages_and_is_stored_later(
    page: Page, slow: Site
) -> None:
    """What another tab writes in the page's conversation is followed all the same."""
    page.add_init_script(STORAGE_FULL)
    play = Playground(page, slow).open()
    page.evaluate("() => { globalThis.storageIsFull = false }")
    play.set(max_tokens=40)
    play.ask(FOX)
    play.wait_tokens(4)
    play.start_new()
    play.drawer.wait_stored(1)
    page.evaluate("() => { globalThis.storageIsFull = true }")
    expect(page.locator("#live-status")).to_have_text(f"“{FOX}” is finished")
    until(page, lambda: page.evaluate(UNKEPT) == "storage_full", "the failed save")
    assert not page.evaluate(UNSAVED)
    page.evaluate("() => { globalThis.storageIsFull = false }")
    until(page, lambda: play.drawer.entries()[0]["nTokens"] == 40, "the whole text")
    assert not page.evaluate(UNSAVED)


def test_one_is_stopped_from_the_drawer_or_deleted_and_brought_back(play: Playground) -> None:
    drawer = play.drawer.show()
    row_of(play, FOX).hover()
    drawer.act("Stop", FOX).click()
    expect(row_of(play, FOX)).to_contain_text("finished")
    play.page.keyboard.press("Escape")
    play.page.evaluate(ASK_AND_LEAVE, HARE)
    drawer.wait_stored(2)
    drawer.show().act("Delete", HARE).click()
    expect(drawer.rows).to_have_count(1)
    assert len(drawer.entries()) == 1, "its run does not store it again"
    drawer.dialog.get_by_role("button", name="Undo").click()
    drawer.open(HARE)
    expect(play.stats).to_contain_text("stopped")


def test_a_full_queue_is_said_in_its_own_conversation_and_the_prompt_stays(
    page: Page, site: Callable[..., Site]
) -> None:
    here = Playground(page, site(delay=0.03, n_slots=1, queue=0)).open()
    here.set(max_tokens=UNENDING)
    here.ask(FOX)
    here.wait_tokens(2)
    here.start_new()
    here.page.evaluate(ASK_AND_LEAVE, HARE)
    expect(here.notice).to_be_hidden()
    drawer = here.drawer.show()
    expect(row_of(here, HARE)).to_contain_text("failed: ")
    assert violations(page) == []
    drawer.act("Stop", FOX).click()
    drawer.open(HARE)
    expect(here.notice).to_contain_text("The queue is full")
    expect(page.locator(".said")).to_have_text(HARE)
    here.set(max_tokens=5)
    here.notice.get_by_role("button", name="Send again").click()
    here.wait_tokens(5)
    here.wait_done()
    expect(here.notice).to_be_hidden()
    sent: list[dict[str, Any]] = [m for m in here.messages.sent if m["type"] == "generate"]
    assert sent[-1]["messages"] == sent[-2]["messages"]


@pytest.mark.parametrize(
    ("theme", "width"), [pytest.param("light", 1440, marks=pytest.mark.slow), ("dark", 360)]
)
def test_axe_finds_nothing_in_the_marks(page: Page, slow: Site, theme: str, width: int) -> None:
    play = open_page(page, slow, color_scheme=theme)
    play.set(max_tokens=UNENDING)
    page.evaluate(ASK_AND_LEAVE, FOX)
    page.set_viewport_size({"width": width, "height": 740})
    drawer = play.drawer.show()
    expect(row_of(play, FOX)).to_contain_text("writing")
    assert violations(page) == []
    assert play.overflow() <= 0
    drawer.act("Stop", FOX).click()
    until(page, lambda: violations(page) == [], "finished")
    expect(row_of(play, FOX)).to_contain_text("finished")
