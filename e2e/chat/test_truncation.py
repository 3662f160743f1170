"""A chat that outgrows the context is refused, or written without its oldest turns."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.playground import Playground

LONG = "🦊" * 50  # 200 tokens of the fake tokenizer


def test_the_oldest_turns_are_dropped_when_the_person_says_so(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play(context=512, delay=0.0)
    here.set(max_tokens=3, seed=1)
    for n in (1, 2):
        here.ask(LONG)
        expect(page.locator(".answer")).to_have_count(n)
        here.wait_tokens(3)
        here.wait_done()
    here.ask(LONG)
    expect(here.notice).to_contain_text("The prompt is too long")
    expect(here.prompt).to_have_value(LONG)
    page.get_by_role("button", name="Drop the oldest turns").click()
    expect(page.locator(".answer")).to_have_count(3)
    here.wait_tokens(3)
    here.wait_done()
    expect(here.notice).to_be_hidden()
    note = here.answer.locator(".dropped")
    expect(note).to_have_text("without the oldest turn")
    accepted = here.messages.events("accepted")
    assert [event["dropped"] for event in accepted] == [[], [], [0, 1]]

    page.reload()
    here.wait_ready()
    expect(note).to_have_text("without the oldest turn")
    setting = page.get_by_label("When context is full")
    expect(setting).to_have_value("auto")
    here.ask(LONG)
    expect(page.locator(".answer")).to_have_count(4)
    here.wait_tokens(3)
    expect(note).to_have_text("without the 2 oldest turns")
    here.wait_done()
    setting.select_option("disabled")
    here.ask(LONG)
    expect(here.notice).to_contain_text("The prompt is too long")


@pytest.mark.quick
def test_a_text_slides_through_the_context_when_the_person_says_so(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play(context=512, delay=0.0)
    here.set(max_tokens=6, seed=1)
    for n in (1, 2):
        here.ask(LONG)
        expect(page.locator(".answer")).to_have_count(n)
        here.wait_tokens(6)
        here.wait_done()
    here.ask(LONG)
    expect(here.notice).to_contain_text("The prompt is too long")
    page.get_by_role("button", name="Let the oldest tokens leave").click()
    expect(page.locator(".answer")).to_have_count(3)
    here.wait_tokens(6)
    here.wait_done()
    expect(page.get_by_label("When context is full")).to_have_value("slide")
    n_prompt = len(here.messages.events("accepted")[-1]["prompt"])
    slid = [event["slid"] for event in here.messages.events("token")[-6:]]
    assert slid[0] == ((n_prompt - 1 - 512) // 127 + 1) * 127
    expect(here.answer.locator(".dropped")).to_have_text(
        f"the oldest {slid[-1]} tokens left the context"
    )
    why = r"The oldest \d+ tokens had left the context when this was written\."
    for tab in ("lens", "attention", "forward", "filters"):
        here.look.open(tab)
        expect(here.look.panel).to_contain_text(re.compile(rf"{why} Select an earlier token\."))
    here.look.open("loss")  # reads the whole answer
    expect(here.look.panel).to_contain_text(re.compile(why))
