"""Chunks of a changed prompt are moved within the KV cache when the person says so."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from e2e.playground import Playground
from e2e.site import Site

STORY = "The fox went into the woods and looked for a lantern. " * 8
LABEL = "Move cached chunks of a changed prompt"


def unfolded(page: Page) -> Locator:
    """Return the setting, after unfolding what it is in."""
    page.locator("#penalties").evaluate("(fold) => void (fold.open = true)")
    return page.get_by_label(LABEL)


def test_what_was_moved_is_said_before_the_answer(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    page.get_by_text("Completion", exact=True).click()
    note = page.locator("#cache-reuse-note")
    expect(note).to_be_hidden()
    play.write(STORY, 2)
    play.start_new()
    unfolded(page).select_option("32")
    expect(note).to_contain_text("Approximate")
    play.write("One day a hare. " + STORY, 2)
    moved = play.messages.events("prefill")[-1]["moved"]
    n = sum(chunk["end"] - chunk["first"] for chunk in moved)
    assert n >= 32
    said = f"{n} tokens of the prompt moved (approximate)"
    expect(play.answer.locator(".dropped")).to_have_text(said)


def test_the_setting_is_sent_with_every_request_and_survives_a_reload(
    play: Callable[..., Playground],
) -> None:
    here = play()
    here.write(n=2)
    assert all("cache_reuse" not in message for message in here.messages.sent)
    for choice, sent in (("256", 256), ("0", 0)):
        unfolded(here.page).select_option(choice)
        here.page.reload()
        here.wait_ready()
        expect(unfolded(here.page)).to_have_value(choice)
        here.write(n=2)
        requests = [m for m in here.messages.sent if m["type"] == "generate"]
        assert requests[-1]["cache_reuse"] == sent
