"""The start page: each prompt is sent by one click, and what it is about opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until

INSTRUMENTS = "async () => (await import('/static/js/look/instruments.js')).INSTRUMENTS"


def example(page: Page, text: str) -> Locator:
    return page.get_by_role("list", name="Prompts to begin with").get_by_role("button", name=text)


def requests(play: Playground) -> list[dict[str, Any]]:
    return [message for message in play.messages.sent if message["type"] == "generate"]


def test_the_next_token_is_shown_with_its_candidates(play: Callable[..., Playground]) -> None:
    here = play(delay=0.01)
    example(here.page, "The capital of France is").click()
    here.wait_tokens(12)
    here.wait_done()
    (asked,) = requests(here)
    assert asked["prompt"] == "The capital of France is"
    assert asked["params"]["max_tokens"] == 12
    expect(here.prompt).to_have_value("")
    expect(here.core).to_have_attribute("aria-valuenow", "1")
    expect(here.box("max_tokens")).not_to_have_value("12")


@pytest.mark.quick
def test_an_instrument_opens_on_the_word_that_it_is_about(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    example(page, "The animal did not cross the road").click()
    expect(here.look.panel).to_have_accessible_name("Attention")
    here.wait_done()
    expect(page.locator(".who-token .tok-word")).to_have_text("it")
    assert requests(here)[0]["messages"][0]["content"].startswith("The animal")
    here.start_new()
    example(page, "The cat sat on the mat").click()
    expect(here.look.panel).to_have_accessible_name("Lens")
    here.wait_done()
    expect(here.core).to_have_attribute("aria-valuenow", "1")


def test_a_long_text_is_sent_twice(page: Page, play: Callable[..., Playground]) -> None:
    here = play(context=2048)
    example(page, "Twice, the second time from the cache").click()
    expect(here.look.panel).to_have_accessible_name("Cache")
    until(page, lambda: len(requests(here)) == 2, "the second request")
    here.wait_done()
    first, second = requests(here)
    assert first["prompt"] == second["prompt"]
    assert page.locator(".answer").count() == 2


def test_a_poem_is_written_slowly_and_then_the_chosen_pace_is_back(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    chosen = page.get_by_label("Tokens a second")
    chosen.select_option("10 / s")
    example(page, "Write a poem about the sea").click()
    expect(chosen).to_have_value("2")
    here.wait_tokens(2)
    here.slide("temperature", 1.5)
    expect(page.locator(".answer").last).to_contain_text("→ 1.5")
    here.stop.click()
    expect(chosen).to_have_value("10")
    assert requests(here)[0]["pace"] == 2


@pytest.mark.quick
def test_a_phone_opens_the_panel_that_a_prompt_is_about(
    page: Page, play: Callable[..., Playground]
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    here = play()
    sheets = ("next", "core", "sampling")
    texts = ("The capital of France is", "Tell me a story about a fox", "Write a poem")
    for sheet, text in zip(sheets, texts, strict=True):
        example(page, text).click()
        expect(page.locator(f"[data-sheet={sheet}]")).to_be_visible()
        here.start_new()
        expect(page.locator(f"[data-sheet={sheet}]")).to_be_hidden()


def test_a_question_is_compared_at_three_temperatures(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    example(page, "Why is the sky blue?").click()
    until(page, lambda: len(requests(here)) == 3, "three requests")
    temperatures = [message["params"]["temperature"] for message in requests(here)]
    assert temperatures == [0.7, 0, 2]
    expect(here.look.panel).to_have_accessible_name("Compare")
    expect(here.box("temperature")).to_have_value("0.70")
    expect(page.locator(".cmp-column")).to_have_count(3)
    expect(here.prompt).to_have_value("")


def test_the_same_words_in_another_order_are_compared(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    example(page, "a dog bites a man").click()
    until(page, lambda: len(requests(here)) == 2, "two requests")
    first, second = requests(here)
    texts = [message["messages"][0]["content"] for message in (first, second)]
    assert texts[0].split()[:4] == texts[1].split()[:4]
    assert sorted(texts[0].rstrip(".").split()) == sorted(texts[1].rstrip(".").split())
    assert first["params"] == second["params"]
    expect(page.locator(".cmp-column").nth(1).get_by_role("textbox")).to_have_value(texts[1])


def test_before_the_model_is_ready_it_waits_in_the_composer(
    page: Page, site: Callable[..., Site]
) -> None:
    here = Playground(page, site())
    here.route_sockets()
    here.open()
    here.offline = True
    here.cut()
    expect(here.notice).to_contain_text("The server cannot be reached")
    example(page, "Hello world").click()
    expect(here.prompt).to_have_value("Hello world")
    expect(here.prompt).to_be_focused()
    assert requests(here) == []


@pytest.mark.quick
def test_every_example_opens_what_there_is(loaded: Page, call: Callable[..., Any]) -> None:
    names = {instrument["name"] for instrument in loaded.evaluate(INSTRUMENTS)}
    for model in ("tale-3m", "SmolLM2-135M-Instruct"):
        examples = call("start/examples", "examplesFor", {"name": model, "chat": True})
        assert {each.get("open", "compare") for each in examples} <= names
        assert len({each["text"] for each in examples}) == len(examples)
        without = call("start/examples", "examplesFor", {"name": model, "chat": False})
        assert {each["mode"] for each in without} == {"completion"}


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 360)])
def test_it_can_be_read_and_reached(
    page: Page, site: Callable[..., Site], theme: str, width: int
) -> None:
    here = open_page(page, site(), color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 800})
    expect(example(page, "Hello world")).to_be_visible()
    assert violations(page) == []
    assert here.overflow() <= 0
