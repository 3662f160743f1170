"""The dialog of words: what it finds, what it says of the loaded model, and the places it opens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.look.test_looks import violations
from e2e.playground import Playground
from gpu.sampling_params import SETTINGS


@pytest.fixture
def words(loaded: Page) -> Locator:
    """The list of the dialog, opened by its key."""
    loaded.evaluate("document.activeElement.blur()")
    loaded.keyboard.press("/")
    expect(loaded.locator("#words-search")).to_be_focused()
    return loaded.locator("#words-list li")


def glossary(page: Page) -> list[dict[str, Any]]:
    words: list[dict[str, Any]] = page.evaluate(
        "async () => (await import('/static/js/glossary/glossary.js')).GLOSSARY"
    )
    return words


def test_a_word_is_found_by_each_of_its_names_and_opens_its_place(
    loaded: Page, words: Locator
) -> None:
    for name in ("nucleus", "TOP-P"):
        loaded.locator("#words-search").fill(name)
        expect(words.first.locator("dfn")).to_have_text("top-p")
    loaded.keyboard.press("Enter")
    expect(loaded.locator("#words")).to_be_hidden()
    expect(loaded.locator("#n-top_p")).to_be_focused()
    loaded.locator("#words-open").click()
    loaded.locator("#words-search").fill("mlp.up_proj")
    words.first.get_by_role("button", name="Forward pass").click()
    expect(loaded.get_by_role("tab", name="Forward")).to_have_attribute("aria-selected", "true")


def test_it_says_what_a_word_is_in_the_loaded_model(loaded: Page, words: Locator) -> None:
    model = loaded.evaluate("import('/static/js/state.js').then((m) => m.state.hello.model)")
    loaded.locator("#words-search").fill("d_model")
    expect(words.first.locator(".word-here")).to_have_text(f"{model['hidden_size']:,}")
    loaded.locator("#words-search").fill("cache")
    expect(words.first.locator("dfn")).to_have_text("KV cache")
    loaded.locator("#words-search").fill("no such word")
    expect(words).to_have_count(0)
    expect(loaded.locator("#words-found")).to_have_text("nothing found")


def test_every_word_has_a_sentence_and_a_place_that_exists(loaded: Page) -> None:
    instruments = loaded.evaluate(
        "async () => (await import('/static/js/look/instruments.js')).INSTRUMENTS"
        ".map(({ name }) => name)"
    )
    places = {*instruments, *(setting.name for setting in SETTINGS), None}
    names = []
    for word in glossary(loaded):
        names += [word["word"], *word.get("also", [])]
        assert word.get("place") in places, word["word"]
        assert re.fullmatch(r"[A-Z].*\.", word["says"]), f"{word['word']}: one sentence"
    assert len(names) == len(set(names)), "a name leads to one word"


def test_a_tensor_and_a_conversation_are_found_by_name_and_open(
    play: Callable[..., Playground],
) -> None:
    here = play()
    page = here.page
    here.set(max_tokens=4)
    here.ask("Harvest moon")
    here.wait_done()
    here.start_new()
    page.locator("#words-open").click()
    search, found = page.locator("#words-search"), page.locator("#words-list li")
    expect(search).to_have_value("")
    expect(found.filter(has_text="Harvest")).to_have_count(0)
    search.fill("mlp.up_proj")
    expect(found.first.locator("dfn")).to_have_text("W_up")
    search.fill("layers.2.mlp.up_proj")
    found.filter(has_text="A tensor of").get_by_role("button", name="Weights").click()
    expect(page.get_by_role("tab", name="Weights")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("radio", name="One tensor")).to_be_checked()
    page.locator("#words-open").click()
    search.fill("harvest")
    found.filter(has_text="Harvest moon").get_by_role("button", name="Open").click()
    expect(page.get_by_test_id("log")).to_contain_text("Harvest moon")


def test_a_word_met_in_a_text_is_asked_by_keyboard(play: Callable[..., Playground]) -> None:
    here = play()
    here.ask()
    here.wait_done()
    here.look.open("lens")
    term = here.page.locator("#look-what .term").first
    expect(term).to_be_visible()
    asked = term.get_attribute("data-term") or ""
    term.focus()
    here.page.keyboard.press("Enter")
    expect(here.page.locator("#words-search")).to_have_value(asked)
    expect(here.page.locator("#words-list li").first.locator("dfn")).to_have_text(asked)
    assert violations(here.page) == []
    here.page.keyboard.press("Escape")
    expect(here.page.locator("#words")).to_be_hidden()


def test_labels_of_layers_and_cache_are_asked_by_their_names_in_articles(
    play: Callable[..., Playground],
) -> None:
    here = play()
    here.ask()
    here.wait_done()
    here.look.open("cache")
    labels = here.page.locator("#ltab .term, .kv-ways .term")
    names = [label.get_attribute("data-term") for label in labels.all()]
    layers = {"attention", "MLP", "entropy", "residual stream", "W_unembed", "W_E"}
    assert {*names} == {*layers, "GQA", "MHA", "MQA", "sliding window"}
    for label in labels.all():
        name = label.get_attribute("data-term") or ""
        label.click()
        first = here.page.locator("#words-list li").first
        expect(first).to_contain_text(name)
        expect(first.get_by_role("button")).to_be_visible()
        here.page.keyboard.press("Escape")
    assert violations(here.page) == []
