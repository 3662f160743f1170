"""Speculative decoding on the page: what was proposed, accepted and rejected, token by token."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.look.panel import LookPanel
from e2e.playground import Playground
from e2e.site import Site

N = 8


def written(page: Page, here: Site) -> Playground:
    """Write `N` tokens: of every four, two accepted drafts, a rejected one, and none."""
    play = Playground(page, here).open()
    play.set(max_tokens=N)
    play.ask()
    play.wait_tokens(N)
    play.wait_done()
    return play


@pytest.mark.quick
def test_accepted_and_rejected_drafts_are_marked_in_the_text(
    page: Page, site: Callable[..., Site]
) -> None:
    written(page, site(drafts=True))
    kinds = page.locator(".answer .tok").evaluate_all(
        "(tokens) => tokens.map((token) => token.dataset.draft ?? '')"
    )
    assert kinds == 2 * ["accepted", "accepted", "rejected", ""]
    colours = page.locator(".answer .tok").evaluate_all(
        "(tokens) => tokens.map((token) => getComputedStyle(token).backgroundColor)"
    )
    assert colours[0] == colours[1] != colours[3]


def test_the_panel_of_a_token_says_what_became_of_its_draft(
    page: Page, site: Callable[..., Site]
) -> None:
    written(page, site(drafts=True))
    said = page.locator("#tok-sub")
    tokens = page.locator(".answer .tok")
    tokens.nth(1).hover()
    expect(said).to_have_text(re.compile(r"^p [\d.]+ · \d+(st|nd|rd|th) · drafted$"))
    tokens.nth(2).hover()
    expect(said).to_have_text(re.compile(r"^p [\d.]+ · not “.+”$"))
    tokens.nth(3).hover()
    expect(said).not_to_contain_text("draft")


def test_the_timeline_counts_drafts_by_their_place(page: Page, site: Callable[..., Site]) -> None:
    """Twice two of five: a step proposes five, of which the last two fall with the third."""
    written(page, site(drafts=True))
    panel = LookPanel(page).open("timeline").panel
    expect(panel.locator("dl div", has_text="drafts accepted").locator("dd")).to_have_text(
        "4 of 10"
    )
    expect(panel.locator("dl div", has_text="by place").locator("dd")).to_have_text(
        "100 100 0 0 0 %"
    )


def test_a_run_without_drafts_has_no_word_of_them(page: Page, site: Callable[..., Site]) -> None:
    written(page, site())
    panel = LookPanel(page).open("timeline").panel
    expect(panel.locator("dl div", has_text="TPOT")).to_be_visible()
    expect(panel.locator("dl div", has_text="draft")).to_have_count(0)
    expect(page.locator(".answer .tok[data-draft]")).to_have_count(0)
