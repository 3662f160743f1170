"""Pace of a text: pauses, presses, what the next token is drawn from, the remembered choice."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES, until
from gpu import Request, SamplingParams
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions

PREVIEW_HEAD = "Next token"


def first_bar(page: Page) -> str:
    return page.locator("#cands li").first.locator(".n").inner_text()


@pytest.mark.quick
def test_a_slider_moved_in_a_pause_acts_on_the_next_press(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play(delay=0.01)
    here.set(temperature="2", max_tokens=60)
    page.get_by_label("Tokens a second").select_option("by step")
    here.ask()
    expect(here.stats).to_contain_text("Paused before token 1")
    expect(page.locator("#tok-word")).to_have_text(PREVIEW_HEAD)
    step = page.get_by_role("button", name="Step")
    for n in range(1, 4):
        step.click()
        expect(here.stats).to_contain_text(f"Paused before token {n + 1}")
        expect(here.tokens).to_have_count(n)
    hot = first_bar(page)
    here.slide("temperature", 0)
    expect(page.locator("#cands li").first.locator(".n")).to_contain_text("100")
    assert "100" not in hot
    likeliest = page.locator("#cands li").first.locator(".w").inner_text()
    step.click()
    expect(here.tokens).to_have_count(4)
    assert here.tokens.nth(3).inner_text().strip() == likeliest.strip()
    page.get_by_role("button", name="Go on").click()
    here.wait_done()


def test_keys_pause_step_and_go_on(page: Page, play: Callable[..., Playground]) -> None:
    here = play(delay=0.02)
    here.set(max_tokens=400)
    here.ask()
    here.wait_tokens(3)
    page.locator("#turns").focus()
    page.keyboard.press("p")
    expect(here.stats).to_contain_text("Paused before token")
    expect(page.locator("#sampling-hint-text")).to_have_text(
        "Changes take effect on the next token"
    )
    expect(page.locator("#tok-word")).to_have_text(PREVIEW_HEAD)  # all tokens in flight have come
    n = here.tokens.count()
    page.keyboard.press(".")
    expect(here.tokens).to_have_count(n + 1)
    page.locator("#prompt").focus()
    page.keyboard.type("p.")
    expect(page.locator("#prompt")).to_have_value("p.")
    expect(here.tokens).to_have_count(n + 1)
    page.locator("#turns").focus()
    page.keyboard.press("p")
    here.wait_tokens(n + 3)
    here.stop.click()
    here.wait_done()


def test_a_long_press_writes_on_until_it_ends(page: Page, play: Callable[..., Playground]) -> None:
    here = play(delay=0.02)
    here.set(max_tokens=400)
    page.get_by_label("Tokens a second").select_option("by step")
    here.ask()
    expect(here.stats).to_contain_text("Paused before token 1")
    page.get_by_role("button", name="Step").hover()
    page.mouse.down()
    here.wait_tokens(5)
    page.mouse.up()
    expect(here.stats).to_contain_text("Paused before token")
    expect(page.locator("#tok-word")).to_have_text(PREVIEW_HEAD)  # all in flight have come
    n = here.tokens.count()
    assert n < 400
    page.get_by_role("button", name="Step").click()  # a short one
    expect(here.stats).to_contain_text(f"Paused before token {n + 2}")
    expect(here.tokens).to_have_count(n + 1)
    updates = [m for m in here.messages.sent if m["type"] == "update"]
    assert [m.get("pace", m.get("steps")) for m in updates] == [None, 0, 1]


def test_columns_of_a_comparison_are_stepped_together(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play(delay=0.002)
    here.set(max_tokens=12, seed=5)
    page.get_by_label("Tokens a second").select_option("by step")
    compare = here.compare.open("Tell me a story about a fox")
    compare.go.click()
    for n in range(1, 4):
        here.step()
        for column in (0, 1):
            expect(compare.tokens(column)).to_have_count(n)
    page.get_by_role("button", name="Go on").click()
    compare.wait_done()
    for text, message in zip(compare.texts(), here.reach.requests(), strict=True):
        written = here.site.reference("Tell me a story about a fox", **message["params"])
        assert text == "".join(token.text for token in written)


def give_slot_up(here: Playground, engine: FakeEngine) -> None:
    """Have the run that has the only slot wait again, as another needs the slot."""
    n = len(here.messages.events("queued"))
    with engine.changed:
        engine.active[0].move_to(1)
    until(here.page, lambda: len(here.messages.events("queued")) > n, "its place")
    here.page.evaluate(TWO_FRAMES)


def test_a_text_that_gave_its_slot_up_in_a_pause_is_paused(
    page: Page, own_site: Callable[..., Site]
) -> None:
    engine = FakeEngine(FakeOptions(delay=0.002, n_slots=1))
    here = Playground(page, own_site(load=lambda _progress: engine)).open()
    page.get_by_label("Tokens a second").select_option("by step")
    here.ask()
    page.get_by_role("button", name="Step").click()
    expect(here.stats).to_contain_text("Paused before token 2")
    give_slot_up(here, engine)
    expect(here.stats).to_contain_text("Paused before token 2")
    assert page.locator("#live-status").inner_text() == "Paused"
    here.start_new()
    here.drawer.show()
    expect(here.drawer.rows).to_contain_text(["paused, 1 token"])


def test_columns_say_how_their_runs_wait_and_end(page: Page, own_site: Callable[..., Site]) -> None:
    engine = FakeEngine(FakeOptions(delay=0.002, n_slots=1, queue=1))
    here = Playground(page, own_site(load=lambda _progress: engine)).open()
    page.get_by_label("Tokens a second").select_option("by step")
    compare = here.compare.open("Tell me a story about a fox")
    compare.go.click()
    status = page.locator(".cmp-status")
    expect(status).to_have_text(["Paused before token 1", "queued, position 1"])
    give_slot_up(here, engine)
    assert status.nth(0).inner_text() == "Paused before token 1"
    request = Request(engine.tokenizer.encode("Once"), SamplingParams(), pace=0.0)
    engine.submit(request, lambda event: None)
    expect(status.nth(0)).to_have_text("0 tokens · ended while paused")
    expect(status.nth(0)).to_have_attribute("title", re.compile("paused longest"))
    compare.act("Stop", 1).click()
    expect(status.nth(1)).to_contain_text("stopped")


def test_a_branch_is_written_at_the_pace(page: Page, play: Callable[..., Playground]) -> None:
    here = play(delay=0.002)
    here.write(n=12)
    page.get_by_label("Tokens a second").select_option("by step")
    here.tokens.nth(4).click()
    page.locator("#cands li .w:enabled").nth(1).click()
    expect(page.locator("#version")).to_have_text("2/2")
    expect(here.stats).to_contain_text("Paused before token 6")
    here.step()
    expect(here.stats).to_contain_text("Paused before token 7")
    expect(here.tokens).to_have_count(6)
    page.get_by_role("button", name="Go on").click()
    here.wait_done()
    expect(here.tokens).to_have_count(5 + 12)


def test_a_branch_of_a_paused_text_is_paused(page: Page, play: Callable[..., Playground]) -> None:
    here = play(delay=0.02)
    here.set(max_tokens=200)
    here.ask()
    here.wait_tokens(6)
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(here.stats).to_contain_text("Paused before token")
    here.tokens.nth(4).click()
    page.locator("#cands li .w:enabled").nth(1).click()
    expect(page.locator("#version")).to_have_text("2/2")
    expect(here.stats).to_contain_text("Paused before token 6")
    page.get_by_role("button", name="Go on").click()
    here.wait_done()
    expect(here.tokens).to_have_count(5 + 200)


def test_a_text_that_was_paused_too_long_says_so_and_goes_on(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play(delay=0.002, n_slots=1, queue=0)
    here.set(max_tokens=12, seed=5)
    page.get_by_label("Tokens a second").select_option("by step")
    here.ask()
    here.step()
    expect(here.stats).to_contain_text("Paused before token 2")
    request = Request(here.site.engine.tokenizer.encode("Once"), SamplingParams(), pace=0.0)
    other = here.site.engine.submit(request, lambda event: None)
    expect(here.stats).to_contain_text("ended while paused")
    expect(here.stats).to_have_attribute("title", re.compile("paused longest"))
    other.cancel()
    here.continue_button.click()
    page.get_by_role("button", name="Go on").click()
    here.wait_done()
    params = next(m["params"] for m in here.messages.sent if m["type"] == "generate")
    written = here.site.reference("Tell me a story", **params)
    assert here.text() == "".join(token.text for token in written)


def test_the_pace_is_remembered_and_asked_for(page: Page, play: Callable[..., Playground]) -> None:
    here = play(delay=0.001)
    page.get_by_label("Tokens a second").select_option("20 / s")
    page.reload()
    expect(page.get_by_label("Tokens a second")).to_have_value("20")
    here.set(max_tokens=4)
    here.ask()
    here.wait_done()
    assert [m["pace"] for m in here.messages.sent if m["type"] == "generate"] == [20]


def test_a_pause_is_said_and_named_in_a_small_window(
    page: Page, play: Callable[..., Playground]
) -> None:
    page.set_viewport_size({"width": 1366, "height": 768})
    here = play(delay=0.002)
    page.get_by_label("Tokens a second").select_option("by step")
    here.ask()
    for n in range(1, 11):
        expect(here.stats).to_contain_text(f"Paused before token {n}")
        here.step()
    expect(here.stats).to_contain_text("Paused before token 11")
    assert page.get_by_role("button", name="Step").inner_text() == "Step"
    said = here.stats.locator("span").first
    assert said.inner_text() == "Paused before token 11"
    assert said.evaluate("(part) => part.scrollWidth <= part.clientWidth"), "the pause is cut off"


def test_times_that_are_long_in_words_stay_in_their_place(
    page: Page, play: Callable[..., Playground]
) -> None:
    """And the speed says that it has no waits in it, since another one was chosen."""
    page.set_viewport_size({"width": 1366, "height": 768})
    here = play(delay=0.002)
    here.set(max_tokens=3)
    page.get_by_label("Tokens a second").select_option("20 / s")
    here.ask()
    here.wait_done()
    expect(page.locator("#r-speed-of")).to_have_text("without waits")
    long = "waited 12 ms, prefill 1,311 tokens (1,292 reused), 8.06 s"
    page.locator("#r-pre").evaluate("(box, text) => { box.textContent = text; }", long)
    rights = page.evaluate(
        """["#r-pre", "#r-dec", ".r-time"].map((name) =>
          document.querySelector(name).getBoundingClientRect().right)"""
    )
    assert rights == sorted(rights)
