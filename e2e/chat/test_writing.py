"""Generate, stop, continue, regenerate, copy: the text on the page is the text that was written."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from tests.app.fake_tokenizer import FakeTokenizer

ASK = "Tell me a story"


@pytest.mark.quick
def test_every_token_is_an_element_and_the_text_is_exactly_what_was_written(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site()
    play = Playground(page, here).open()
    play.set(seed=11, max_tokens=90)
    play.ask(ASK)
    play.wait_tokens(90)
    play.wait_done()
    params = page.evaluate("() => JSON.parse(localStorage['tokenglass.settings']).settings")
    written = here.reference(ASK, **{**params, "seed": 11, "stop": tuple(params["stop"])})
    assert play.text() == "".join(token.text for token in written)
    assert play.numbers() == list(range(90))
    expect(play.stats).to_contain_text("90 tokens")
    expect(play.stats).to_contain_text("max tokens reached")


@pytest.mark.quick
def test_esc_stops_and_keeps_the_text(page: Page, site: Callable[..., Site]) -> None:
    there = site(delay=0.03)
    here = Playground(page, there).open()
    here.set(temperature="1", top_k="0", top_p="1", seed=4)
    here.ask(ASK)
    here.wait_tokens(8)
    page.keyboard.press("Escape")
    here.wait_done()
    text = here.text()
    n = len(here.numbers())
    assert n >= 8
    written = there.reference(ASK, seed=4, max_tokens=n)
    assert text == "".join(token.text for token in written)
    expect(here.stats).to_contain_text("stopped")
    page.wait_for_timeout(200)
    assert here.text() == text


def test_continue_writes_on_in_the_same_answer(play: Callable[..., Playground]) -> None:
    here = play()
    here.set(max_tokens=12)
    here.ask(ASK)
    here.wait_tokens(12)
    here.wait_done()
    before = here.text()
    here.continue_button.click()
    here.wait_tokens(24)
    here.wait_done()
    assert here.text().startswith(before)
    assert len(here.text()) > len(before), "what exactly follows: e2e/chat/test_continuing.py"
    assert here.numbers() == list(range(24))
    assert here.page.locator(".turn.model").count() == 1


def test_regenerate_keeps_the_older_version(play: Callable[..., Playground]) -> None:
    here = play()
    here.set(max_tokens=12)
    here.ask(ASK)
    here.wait_tokens(12)
    here.wait_done()
    first = here.text()
    here.regenerate.click()
    expect(here.page.locator("#version")).to_have_text("2/2")
    here.wait_tokens(12)
    here.wait_done()
    assert here.text() != first, "a seed that was not chosen is drawn anew"
    here.page.get_by_role("button", name="Previous version").click()
    expect(here.page.locator("#version")).to_have_text("1/2")
    assert here.text() == first


def test_a_chosen_seed_writes_the_same_again(play: Callable[..., Playground]) -> None:
    here = play()
    here.set(max_tokens=12, seed="18446744073709551615")
    here.ask(ASK)
    here.wait_tokens(12)
    here.wait_done()
    first = here.text()
    here.regenerate.click()
    expect(here.page.locator("#version")).to_have_text("2/2")
    here.wait_tokens(12)
    here.wait_done()
    assert here.text() == first


def test_a_chat_keeps_its_earlier_turns(play: Callable[..., Playground]) -> None:
    here = play()
    here.set(max_tokens=6)
    here.ask("One")
    here.wait_tokens(6)
    here.wait_done()
    used = here.page.locator("#ctx").inner_text()
    here.ask("Two")
    expect(here.page.locator(".turn")).to_have_count(4)
    here.wait_tokens(6)
    here.wait_done()
    context = here.page.locator("#ctx")
    before = int(used.split("/")[0])
    until(
        here.page,
        lambda: int(context.inner_text().split("/")[0]) > before + 6,
        "a longer context",
    )
    here.page.get_by_role("button", name="New", exact=True).click()
    expect(here.page.locator("body")).to_have_attribute("data-phase", "empty")
    expect(here.page.get_by_text("Write a prompt, and watch")).to_be_visible()


def test_completion_writes_on_from_the_prompt(page: Page, site: Callable[..., Site]) -> None:
    there = site()
    here = Playground(page, there).open()
    page.get_by_text("Completion", exact=True).click()
    here.set(temperature="1", top_k="0", top_p="1", max_tokens=8, seed=4)
    here.ask("Once upon a time")
    here.wait_tokens(8)
    here.wait_done()
    written = there.reference("Once upon a time", chat=False, seed=4, max_tokens=8)
    assert here.text() == "Once upon a time" + "".join(token.text for token in written)
    expect(page.locator(".given")).to_have_text("Once upon a time")


def test_a_model_without_a_chat_template_only_completes(play: Callable[..., Playground]) -> None:
    here = play(chat=False)
    expect(here.page.get_by_role("radio", name="Chat")).to_be_disabled()
    expect(here.page.get_by_role("radio", name="Completion")).to_be_checked()
    notice = here.page.get_by_test_id("notice")
    expect(notice).to_contain_text("no chat template")
    here.set(max_tokens=4)
    here.ask("Once")
    here.wait_tokens(4)
    expect(notice).to_be_hidden()


def test_the_count_follows_what_is_typed(play: Callable[..., Playground]) -> None:
    here = play()
    here.prompt.fill("What is a KV cache?")
    expect(here.page.get_by_test_id("count")).to_contain_text("tokens")
    shown = here.page.get_by_test_id("count").inner_text()
    here.prompt.fill("What is a KV cache? And why?")
    expect(here.page.get_by_test_id("count")).not_to_have_text(shown)
    expect(here.page.get_by_test_id("count")).to_contain_text("tokens")


@pytest.mark.quick
def test_output_that_looks_like_html_is_text(page: Page, own_site: Callable[..., Site]) -> None:
    evil = '<img src=x onerror="document.title=\'owned\'"><script>document.title="owned"</script>'
    ids = FakeTokenizer().encode(evil, bos=False)
    play = Playground(page, own_site(text=evil)).open()
    page.get_by_role("button", name="Greedy").click()
    play.set(max_tokens=20)
    play.ask("<b>bold</b>")
    play.wait_done()
    play.wait_tokens(20)
    play.wait_done()
    assert play.text() == "".join(FakeTokenizer().piece(id) for id in ids[:20])
    assert page.locator(".said").inner_text() == "<b>bold</b>"
    assert page.locator(".log img, .log script, .log b, .cands img").count() == 0
    assert "owned" not in page.title()


@pytest.mark.parametrize("text", ["   ", ""])
def test_nothing_is_sent_for_an_empty_prompt(play: Callable[..., Playground], text: str) -> None:
    here = play()
    here.prompt.fill(text)
    expect(here.page.get_by_role("button", name="Send")).to_be_disabled()
    here.prompt.press("Enter")
    expect(here.page.locator("body")).to_have_attribute("data-phase", "empty")


def test_a_long_prompt_shows_how_far_it_was_read(play: Callable[..., Playground]) -> None:
    here = play(delay=0.05, context=1024)
    here.set(max_tokens=4)
    here.ask("x" * 400)
    expect(here.stats).to_have_text(re.compile(r"Reading the prompt, \d+ of 4\d\d tokens"))
    here.wait_tokens(4)
    here.wait_done()


def test_an_earlier_answer_can_be_looked_at_again(play: Callable[..., Playground]) -> None:
    here = play()
    here.set(max_tokens=6)
    here.ask("One")
    here.wait_tokens(6)
    here.wait_done()
    here.set(max_tokens=9)
    here.ask("Two")
    here.wait_tokens(9)
    here.wait_done()
    expect(here.core).to_have_attribute("aria-valuemax", "9")
    here.page.locator(".answer").first.locator(".tok").nth(2).click()
    expect(here.core).to_have_attribute("aria-valuemax", "6")
    expect(here.core).to_have_attribute("aria-valuenow", "3")
    here.ask("Three")
    here.wait_tokens(9)
    here.wait_done()
    expect(here.core).to_have_attribute("aria-valuemax", "9")


def test_copy_takes_the_text_without_marks(page: Page, site: Callable[..., Site]) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    play = Playground(page, site(delay=0.03)).open()
    play.set(max_tokens=400)
    play.ask(ASK)
    play.wait_tokens(5)
    play.slide("temperature", 1.5)
    expect(page.locator(".mark-change")).to_be_visible()
    page.keyboard.press("Escape")
    play.wait_done()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("() => navigator.clipboard.readText()") == play.text().strip()
