"""A text with a grammar on the page: it is continued under it, and what it allows is shown."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from e2e.playground import Playground
from e2e.site import Site

pytestmark = pytest.mark.quick

ASK = "Tell me a story about a fox who finds a lantern"
N = 6


def give_grammar(play: Playground, text: str) -> None:
    """Make the run one that was begun with a grammar, as a request of another program is."""
    play.page.evaluate(
        """async (text) => {
          const { state } = await import("/static/js/state.js");
          const { segment } = state.turns.at(-1).answers[0];
          segment.request.grammar = { kind: "regex", text };
        }""",
        text,
    )


def test_a_text_goes_on_under_its_grammar_and_the_panels_say_what_it_allows(
    page: Page, bundled: Site
) -> None:
    play = Playground(page, bundled).open()
    play.set(temperature=0.9, seed=11, max_tokens=N)
    play.ask(ASK)
    play.wait_done()
    begun = len(play.messages.events("token"))
    written = "".join(event["text"] for event in play.messages.events("token"))
    give_grammar(play, rf"{re.escape(written)}[ a-c]{{12}}".replace(r"\ ", " "))
    play.continue_button.click()
    play.wait_tokens(begun + 3)
    play.wait_done()

    tokens = play.messages.events("token")[begun:]
    assert re.fullmatch("[ a-c]+", "".join(event["text"] for event in tokens))
    request = [m for m in play.messages.sent if m["type"] == "generate"][-1]
    assert request["grammar"]["n_read"] == begun

    first = tokens[0]
    page.evaluate("async (i) => (await import('/static/js/view.js')).pin(i)", begun)
    mass = page.locator("#draw .mass")
    expect(mass).to_contain_text(f"grammar allows {first['allowed']['n']} of 4,096")
    expect(mass).to_contain_text(f"of {first['allowed']['n']} kept")

    look = play.look.open("filters")
    summary = look.panel.locator(".wf-summary")
    expect(summary).to_contain_text(f"The grammar allows {first['allowed']['n']} of 4,096 tokens")
    expect(summary).to_contain_text("It forbids “")
    rows = look.table()
    forbidden = [row for row in rows if row["cut by"] == "grammar"]
    assert len(forbidden) == 5
    shares = [float(row["raw logits"]) for row in forbidden]
    assert shares == sorted(shares, reverse=True)
    left = next(row for row in rows if row["what"] == "tokens left")
    assert int(left["raw logits"]) == first["allowed"]["n"]
