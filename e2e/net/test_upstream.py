"""The page in front of an upstream server: it shows what that tells, and says what it does not."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from app.config import Settings
from app.upstream.engine import UpstreamEngine
from e2e.playground import Playground
from e2e.site import Site
from tests.app.upstream.stand_in import WORDS, StandIn

STORY = "".join(WORDS)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    stand_in = StandIn("vllm")
    yield stand_in
    stand_in.close()


@pytest.fixture
def play(page: Page, stand_in: StandIn) -> Iterator[Playground]:
    site = Site(UpstreamEngine(Settings(upstream=stand_in.url))).start()
    yield Playground(page, site).open()
    site.close()


@pytest.mark.quick
def test_an_answer_and_its_candidates_are_shown(page: Page, play: Playground) -> None:
    play.ask()
    play.wait_tokens(len(WORDS))
    play.wait_done()
    assert play.text() == STORY
    page.locator("#tok-prev").click()
    expect(page.get_by_test_id("token-sub")).to_have_text("p 0.082 · 2nd choice")
    rows = page.get_by_test_id("candidates").locator("li")
    expect(rows.nth(0).locator(".w")).to_have_text("the")
    expect(rows.nth(0).locator(".n")).to_have_text("90.5")
    expect(page.locator("#draw")).to_contain_text(
        "does not expose how many tokens its sampler kept"
    )
    expect(page.locator("#r-ttft")).not_to_have_text("–")


def test_a_pause_without_a_preview_is_said_where_the_pace_is(page: Page, play: Playground) -> None:
    why = page.locator("#meta").get_by_text(
        "does not expose what the next token would be drawn from"
    )
    expect(why).to_be_hidden()
    page.get_by_label("Tokens a second").select_option("by step")
    play.ask()
    for n in (1, 2):
        expect(play.stats).to_contain_text(f"Paused before token {n}")
        expect(why).to_be_in_viewport()
        play.step()
        expect(play.tokens).to_have_count(n)
    page.get_by_role("button", name="Go on").click()
    play.wait_done()
    assert play.text() == STORY
    expect(why).to_be_hidden()


def test_what_is_missing_is_said_where_it_is_missed(page: Page, play: Playground) -> None:
    play.ask()
    play.wait_done()
    expect(page.locator(".layers")).to_contain_text(
        "does not expose what happens inside its layers"
    )
    expect(page.locator("#ltab")).to_be_hidden()
    draw = page.locator("#draw")
    expect(draw).to_contain_text("does not expose how many tokens its sampler kept, or the number")
    assert draw.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    expect(page.locator(".r-kv")).to_contain_text("does not expose how much memory it uses")
    expect(page.locator("label:has(#cache-reuse)")).to_have_attribute("hidden", "")
    for name, what in (
        ("attention", "what its attention heads attend to"),
        ("lens", "what it would have predicted"),
        ("filters", "the logits of its whole vocabulary"),
        ("reach", "a way to change its heads"),
        ("loss", "the loss"),
        ("cache", "where keys and values lie"),
        ("schedule", "what each of its steps"),
        ("weights", "its weights"),
        ("plan", "which dispatches"),
    ):
        tab = page.locator(f"#look-tab-{name}")
        expect(tab).to_have_accessible_description(re.compile(f"server does not expose {what}"))
        play.look.open(name)
        expect(play.look.message).to_contain_text(f"The upstream server does not expose {what}")
    for name in ("tokens", "timeline", "branches"):
        expect(page.locator(f"#look-tab-{name}")).to_have_accessible_description("")
        play.look.open(name)
        expect(play.look.message).to_be_hidden()
    play.look.open("tokens")
    expect(play.look.source).to_contain_text("does not expose how it splits a prompt")
    page.get_by_test_id("about-open").click()
    expect(page.locator("#facts")).to_contain_text("vLLM")


def test_a_slider_acts_while_it_writes(page: Page, play: Playground, stand_in: StandIn) -> None:
    stand_in.answer = lambda handler: handler.stream(WORDS * 5, delay=0.1)
    play.set(max_tokens=60)
    play.ask()
    play.wait_tokens(3)
    play.set(temperature=0.3)
    play.wait_done()
    first, second = stand_in.bodies
    assert (first["temperature"], second["temperature"]) == (1.0, 0.3)
    assert play.text().startswith(second["messages"][-1]["content"])
    before = 60 - second["max_tokens"]
    expect(play.tokens).to_have_count(min(60, before + 5 * len(WORDS)))


def test_a_token_is_replaced_by_another(page: Page, play: Playground, stand_in: StandIn) -> None:
    play.ask()
    play.wait_tokens(len(WORDS))
    play.wait_done()
    for _ in range(4):
        page.locator("#tok-prev").click()
    page.get_by_test_id("candidates").locator("li .w").first.click()
    play.wait_done()
    expect(play.tokens.nth(3)).to_have_text("the")
    kept = "".join(WORDS[:3]) + " the"
    assert stand_in.bodies[-1]["messages"][-1] == {"role": "assistant", "content": kept}
    play.wait_tokens(4 + len(WORDS))
    assert play.text() == kept + STORY


def test_a_refusal_gives_the_prompt_back(page: Page, play: Playground, stand_in: StandIn) -> None:
    stand_in.answer = lambda handler: handler.json(429, {"error": {"message": "no room"}})
    play.ask("My long prompt")
    expect(play.notice).to_contain_text("busy: no room")
    expect(play.prompt).to_have_value("My long prompt")
    stand_in.answer = lambda handler: handler.stream(WORDS, finish=None)
    play.prompt.press("Enter")
    expect(play.notice).to_contain_text("broke off")
    assert play.text() == STORY
