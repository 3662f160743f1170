"""Branches of an answer that is being written, over lost connections and over reloads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from app.ws.sessions import Retention
from e2e.chat.branching import (
    LOST_LINE,
    force,
    look_at,
    other_than_drawn,
    row,
    sent,
    wrote,
)
from e2e.conversations.drawer import STORAGE_OFF
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES
from tests.app.fake_options import ENDLESS

CUT_BY = """(selector) => {
  const button = document.querySelector(selector);
  WebSocket.prototype.send = function () { this.close(); delete WebSocket.prototype.send };
  button.click();
}"""
"""Presses a button whose first message is lost with the connection."""


@pytest.mark.slow
def test_a_run_that_writes_is_stopped_first_and_stays_as_it_was(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site(delay=0.03)
    play = Playground(page, here).open()
    messages = play.messages
    play.set(max_tokens=300, seed=5)
    play.ask()
    play.wait_tokens(15)
    look_at(play, 6)
    token = messages.events("token")[6]
    other = other_than_drawn(token)
    row(page, other["text"].strip()).click()
    expect(page.locator("#version")).to_have_text("2/2")
    play.wait_tokens(20)
    done = messages.events("done")
    assert [event["reason"] for event in done] == ["cancelled"]
    assert len(sent(messages, "stop")) == 1
    order = [message["type"] for message in messages.sent if message["type"] != "count"]
    assert order == ["generate", "stop", "inspect", "generate"]
    play.stop.click()
    play.wait_done()
    page.get_by_role("button", name="Previous version").click()
    expect(play.tokens).to_have_count(done[0]["completion_tokens"])
    assert play.text() == "".join(
        t["text"] for t in messages.events("token")[: done[0]["completion_tokens"]]
    )


def test_the_rows_stand_still_under_the_hand_while_the_text_goes_on(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, site(delay=0.03)).open()
    play.set(max_tokens=300, seed=5)
    play.ask()
    play.wait_tokens(10)
    page.locator(".cands li").nth(2).hover()
    page.evaluate(TWO_FRAMES)  # from here on they stand
    number = page.locator("#tok-no").inner_text()
    words = page.locator(".cands .w").all_inner_texts()
    play.wait_tokens(int(number) + 8)
    assert page.locator(".cands .w").all_inner_texts() == words
    page.mouse.move(5, 5)
    expect(page.locator("#tok-no")).not_to_have_text(number)
    play.stop.click()
    play.wait_done()


@pytest.mark.slow
def test_a_cut_line_loses_nothing_of_a_branch(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append(LOST_LINE)
    here = site(delay=0.03)
    play = Playground(page, here)
    messages = play.messages
    play.route_sockets()
    play.open()
    play.set(max_tokens=40, seed=5)
    play.ask()
    play.wait_tokens(40)
    play.wait_done()
    play.tokens.nth(9).click()
    page.locator(".cands li:not(.pick-row) button:enabled").first.click()
    expect(page.locator("#version")).to_have_text("2/2")
    play.wait_tokens(20)
    play.cut()
    expect(play.notice).to_contain_text("The server cannot be reached")
    play.wait_tokens(50)
    play.wait_done()
    assert play.numbers() == list(range(50))
    assert messages is not None
    text = play.text()
    page.reload()
    play.wait_tokens(50)
    assert play.text() == text


@pytest.mark.slow
def test_a_branch_that_was_asked_for_when_the_line_broke_comes_when_it_is_back(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append(LOST_LINE)
    play = Playground(page, site(delay=0.03))
    play.route_sockets()
    play.open()
    play.set(max_tokens=300, seed=5)
    play.ask()
    play.wait_tokens(12)
    play.tokens.nth(4).click()
    page.evaluate(CUT_BY, ".cands li:not(.pick-row) button:enabled")
    expect(page.locator("#version")).to_have_text("2/2", timeout=15_000)
    play.wait_tokens(9)
    play.stop.click()
    play.wait_done()
    page.get_by_role("button", name="Previous version").click()
    expect(play.stats).to_contain_text("stopped")


@pytest.mark.slow
def test_a_reload_brings_every_branch_back(page: Page, site: Callable[..., Site]) -> None:
    play, messages, tokens = wrote(page, site(delay=0.02))
    force(play, 10, other_than_drawn(tokens[10]))
    play.wait_tokens(51)
    play.wait_done()
    later = messages.events("token")[-40:]
    force(play, 30, other_than_drawn(later[19]))
    play.wait_tokens(40)
    page.reload()
    play.wait_tokens(71)
    play.wait_done()
    assert play.numbers() == list(range(71))
    marks = page.locator(".mark-change")
    expect(marks).to_have_count(2)
    expect(page.locator("#version")).to_have_text("3/3")
    texts = [play.text()]
    look_at(play, 3)
    expect(page.locator("#lay-sub")).to_contain_text("on the GPU")
    look_at(play, 30)
    expect(page.locator(".cands .c").filter(has_text="forced")).to_have_count(1)
    for n in (51, 40):
        page.get_by_role("button", name="Previous version").click()
        expect(play.tokens).to_have_count(n)
        texts.append(play.text())
    page.reload()
    expect(page.locator("#version")).to_have_text("1/3")
    for text, n in zip(reversed(texts), (40, 51, 71), strict=True):
        expect(play.tokens).to_have_count(n)
        assert play.text() == text
        newer = page.get_by_role("button", name="Next version")
        if newer.is_enabled():
            newer.click()


@pytest.mark.slow
def test_branches_the_server_forgot_keep_their_text(
    page: Page, own_site: Callable[..., Site]
) -> None:
    page.add_init_script(STORAGE_OFF)
    play, messages, tokens = wrote(page, own_site())
    assert messages is not None
    force(play, 10, other_than_drawn(tokens[10]))
    play.wait_tokens(51)
    play.wait_done()
    text = play.text()
    page.context.clear_cookies()
    page.reload()
    play.wait_ready()
    expect(play.stats).to_contain_text("only the text of this answer is left")
    assert play.text() == text
    page.get_by_role("button", name="Previous version").click()
    page.evaluate(TWO_FRAMES)
    assert play.text() == "".join(token["text"] for token in tokens)


@pytest.mark.slow
def test_a_branch_outlives_what_it_parted_from(page: Page, own_site: Callable[..., Site]) -> None:
    """The server keeps one generation: of the branch's beginning only the words are known."""
    page.add_init_script(STORAGE_OFF)
    here = own_site(retention=Retention(n_finished=1))
    play, _, tokens = wrote(page, here)
    force(play, 10, other_than_drawn(tokens[10]))
    play.wait_tokens(51)
    play.wait_done()
    text = play.text()
    page.reload()
    play.wait_tokens(51)
    assert play.text() == text
    assert play.numbers() == list(range(51))
    sub = page.get_by_test_id("token-sub")
    for index, said in ((3, "measurements are no longer kept"), (10, "choice"), (11, "choice")):
        look_at(play, index)
        expect(sub).to_contain_text(said)
    expect(page.locator(".mark-change")).to_contain_text("forced")
    look = play.look.open("branches")
    row = look.csv()[-1]
    assert (row["tokens"], row["log p"], row["text"]) == ("51", "", text)
    page.keyboard.press("Escape")
    force(play, 20, other_than_drawn(tokens[20]))
    play.wait_tokens(61)
    play.wait_done()


@pytest.mark.quick
def test_a_branch_that_is_refused_leaves_things_as_they_were(
    page: Page, own_site: Callable[..., Site]
) -> None:
    play, _, tokens = wrote(page, own_site(context=64), 20)
    text = play.text()
    look_at(play, 19)
    page.locator("#replace-token-text").fill("one two three four five six seven eight nine")
    page.locator("#replace-token-text").press("Enter")
    expect(play.notice).to_contain_text("64")
    expect(page.locator("#versions")).to_be_hidden()
    assert play.text() == text
    play.notice.get_by_role("button", name="Dismiss").click()
    force(play, 5, other_than_drawn(tokens[5]))
    play.wait_tokens(10)
    play.wait_done()


def test_what_cannot_be_changed_offers_nothing(page: Page, site: Callable[..., Site]) -> None:
    play, _, _ = wrote(page, site(), 10)
    expect(page.locator(".cands .w:enabled").first).to_be_visible()
    play.core.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".cands .w:enabled")).to_have_count(0)
    expect(page.locator("#replace-token-text")).to_be_hidden()
    play.ask("Another question")
    play.wait_tokens(10)
    play.wait_done()
    expect(page.locator(".cands .w:enabled").first).to_be_visible()
    page.locator(".answer").first.locator(".tok").nth(2).click()
    expect(page.locator(".cands .w:enabled")).to_have_count(0)


def test_a_run_again_that_was_asked_for_when_the_line_broke_comes_when_it_is_back(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append(LOST_LINE)
    play = Playground(page, site(delay=0.03, context=ENDLESS))
    play.route_sockets()
    play.open()
    play.set(max_tokens=ENDLESS, seed=5)
    play.ask()
    play.wait_tokens(12)
    play.reach.open()
    page.evaluate(CUT_BY, ".rc-again")
    expect(page.locator("#version")).to_have_text("2/2")
    page.evaluate("async () => (await import('/static/js/turns/stop.js')).stop()")
    play.wait_done()
