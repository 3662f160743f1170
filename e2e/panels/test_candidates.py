"""The rows of one token and the mark of its draw, beside what the engine said of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.playground import Playground
from e2e.site import Site

pytestmark = pytest.mark.quick

SETTINGS = {"temperature": 1.0, "top_k": 8, "top_p": 0.85, "min_p": 0.05, "repetition_penalty": 1.0}
N = 6
"""Tokens of a run whose last token lost some candidates to each filter."""
NOTES = {"": "", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}


def test_rows_and_draw_are_those_of_the_engine(page: Page, site: Callable[..., Site]) -> None:
    here = site()
    token = here.reference("Tell me a story", seed=3, max_tokens=N, **SETTINGS)[-1]
    play = Playground(page, here).open()
    play.set(**SETTINGS, seed=3, max_tokens=N)
    play.ask()
    play.wait_tokens(N)
    play.wait_done()
    expect(page.locator("#tok-no")).to_have_text(str(N))
    rows = page.get_by_test_id("candidates").locator("li")
    shown = token.candidates[: rows.count()]
    notes = [NOTES[c.cut] if c.id != token.id else "drawn" for c in shown]
    assert set(notes) == {"drawn", "top-k", "top-p", "min-p"}
    assert rows.locator(".w").all_inner_texts() == [c.text.removeprefix(" ") for c in shown]
    assert rows.locator(".c").all_inner_texts() == notes
    tick = page.locator("#draw .tick")
    at = float(tick.evaluate("(node) => node.style.getPropertyValue('--u')"))
    assert at == pytest.approx(token.draw * token.mass[0], abs=1e-6)
    spans = page.locator("#draw .mass > span").all_inner_texts()[1:]
    shown_cuts = dict(text.rsplit(" −", 1) for text in spans)
    assert set(shown_cuts) == {"top-k", "top-p", "min-p"}
    for name, share in zip(("top-k", "top-p", "min-p"), token.mass[1:], strict=True):
        assert float(shown_cuts[name].removesuffix(" %")) == pytest.approx(100 * share, abs=0.06)


def test_a_share_that_greedy_choice_makes_impossible_is_noted(
    page: Page, play: Callable[..., Playground]
) -> None:
    """It is the share before, which does not add up to 100 with the 100 of the chosen token."""
    here = play()
    here.set(temperature=0, top_k=0, top_p=1, min_p=0, max_tokens=2)
    here.ask()
    here.wait_done()
    expect(page.locator("#tok-no")).to_have_text("2")
    drawn, *others = page.get_by_test_id("candidates").locator("li .c").all_inner_texts()
    assert (drawn, set(others)) == ("drawn", {"greedy"})


@pytest.mark.parametrize(
    ("penalty", "value"), [("repetition_penalty", 0.7), ("frequency_penalty", -2.0)]
)
def test_a_penalty_is_noted_beside_the_tokens_that_it_acts_on(
    page: Page, play: Callable[..., Playground], penalty: str, value: float
) -> None:
    """These values make tokens of the context likelier, so that they are among the candidates."""
    here = play()
    neutral = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
    here.set(**neutral, **{penalty: value}, seed=3, max_tokens=20)
    here.ask()
    here.wait_done()
    expect(page.locator("#tok-no")).to_have_text("20")
    *before, token = here.messages.events("token")
    context = {each["id"] for each in before}
    if penalty == "repetition_penalty":
        context |= {each["id"] for each in here.messages.events("accepted")[-1]["prompt"]}
    rows = page.get_by_test_id("candidates").locator("li")
    shown = [each["id"] for each in token["candidates"][: rows.count()]]
    notes = ["penalty" if id in context else "" for id in shown]
    assert notes.count("penalty") >= 2
    notes = ["drawn" if id == token["id"] else note for id, note in zip(shown, notes, strict=True)]
    assert rows.locator(".c").all_inner_texts() == notes
