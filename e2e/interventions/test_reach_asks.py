"""What a change inside did is asked; instruments ask about tokens as they were computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.playground import until
from e2e.reach import Hand
from e2e.site import Site

N = 40
HEAD_OFF = {"heads": [{"layer": 2, "head": 3, "factor": 0}]}
STEER = {"layer": 3, "toward": "the sea", "away": "", "strength": 0.5}


def inspections(hand: Hand, kind: str, since: int = 0) -> list[dict[str, Any]]:
    """Questions among the messages from number `since` on."""
    sent = hand.wire.sent[since:]
    asked = [m["question"] for m in sent if m["type"] == "inspect"]
    return [question for question in asked if question["kind"] == kind]


def pin(hand: Hand, index: int) -> None:
    hand.page.evaluate("async (i) => (await import('/static/js/view.js')).pin(i)", index)


def reached(page: Page, here: Site) -> tuple[Hand, int]:
    """An answer that was reached into while it was written, and from which position on."""
    hand = Hand(page, here)
    hand.play.set(max_tokens=N, seed=5)
    hand.play.ask()
    hand.play.wait_tokens(3)
    hand.open().cell("head 2.3").click()
    index = until(page, hand.acknowledged, "the acknowledgement")[0]["index"]
    hand.settle(N)
    return hand, hand.prompt_length() + index - 1


ASKING = {
    "attention": ("attention_from", "attention_to"),
    "lens": ("logit_lens",),
    "filters": ("waterfall",),
    "loss": ("losses",),
}


@pytest.mark.slow
def test_instruments_ask_about_tokens_as_they_were_computed(
    page: Page, site: Callable[..., Site]
) -> None:
    hand, first = reached(page, site(delay=0.1))
    n_prompt = hand.prompt_length()
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)  # what Reach itself asked both ways is on the line
    since = len(hand.wire.sent)
    for name, kinds in ASKING.items():
        hand.look.open(name)
        for index in (N - 2, first - n_prompt):
            pin(hand, index)
            expect(hand.look.message).to_be_hidden()
            page.wait_for_timeout(300)
        for kind in kinds:
            until(page, partial(inspections, hand, kind, since), kind)
            for question in inspections(hand, kind, since):
                expected = [{"first": first, "reach": HEAD_OFF}]
                if len(question["ids"]) <= first:
                    expected = []
                assert question.get("reached", []) == expected, kind
    lens = inspections(hand, "logit_lens", since)
    assert {"reached" in question for question in lens} == {True, False}, "before it, and after"


def test_what_it_did_is_asked_both_ways(page: Page, site: Callable[..., Site]) -> None:
    hand, first = reached(page, site(delay=0.1))
    pin(hand, N - 1)
    expect(hand.panel.locator(".rc-tokens li").first).to_be_visible()
    expect(hand.look.source).to_contain_text("as they ran, and with nothing changed inside")
    without, now = inspections(hand, "logit_lens")[-2:]
    assert "reached" not in without
    assert now["reached"] == [{"first": first, "reach": HEAD_OFF}]
    assert without["ids"] == now["ids"]
    assert now["position"] == len(now["ids"]) - 1
    rows = [row for row in hand.look.csv() if row["part"] == "layer"]
    answers = [asked(hand, question) for question in (without, now)]
    for row in rows:
        stage = int(row["layer"]) + 1
        for column, answer in zip(
            ("share of the written token without", "with"), answers, strict=True
        ):
            assert float(row[column]) == pytest.approx(answer["probability"][stage], rel=1e-5)
    own = hand.panel.locator(".rc-tokens .own .n")
    expect(own).to_have_text(" → ".join(percent(answer["probability"][-1]) for answer in answers))
    entropies = [f"{answer['entropy'][-1]:.2f}" for answer in answers]
    expect(hand.panel.locator(".rc-next")).to_contain_text(
        f"entropy {entropies[0]} → {entropies[1]} bits"
    )


ASK_AGAIN = """async (question) => {
  const { inspect } = await import("/static/js/inspect.js");
  const { arrays } = await inspect(question);
  return { probability: [...arrays.probability.values], entropy: [...arrays.entropy.values] };
}"""


def asked(hand: Hand, question: dict[str, Any]) -> dict[str, list[float]]:
    answer: dict[str, list[float]] = hand.page.evaluate(ASK_AGAIN, question)
    return answer


def percent(share: float) -> str:
    value = 100 * share
    return "<0.1" if value < 0.05 else f"{value:.1f}"


def test_before_it_is_written_again_a_token_shows_what_would_come(
    page: Page, site: Callable[..., Site]
) -> None:
    hand = Hand(page, site()).write(N).open()
    expect(hand.panel.locator(".rc-next")).to_contain_text("Nothing is changed inside")
    pin(hand, 10)
    at = hand.prompt_length() + 10 - 1
    assert inspections(hand, "logit_lens") == []
    hand.cell("head 2.3").click()
    expect(hand.look.source).to_contain_text("with what is set from this one on")
    without, now = inspections(hand, "logit_lens")
    assert "reached" not in without
    assert now["reached"] == [{"first": at, "reach": HEAD_OFF}]
    assert now["position"] == at
    hand.button("Undo").click()
    expect(hand.panel.locator(".rc-next")).to_contain_text("Nothing is changed inside")


def test_a_run_that_begins_with_steering_is_steered_from_the_end_of_its_prompt(
    page: Page, site: Callable[..., Site]
) -> None:
    hand = Hand(page, site()).open()
    hand.cell("head 2.3").click()
    hand.button("Add vector").click()
    toward = hand.panel.get_by_role("textbox", name="Steer toward")
    toward.fill("the sea")
    toward.press("Enter")
    page.keyboard.press("Escape")
    hand.write(N)
    both = HEAD_OFF | {"steer": [STEER]}
    assert hand.requests()[-1]["reach"] == both
    hand.look.open("lens")
    last = hand.prompt_length() - 1
    question = until(page, lambda: inspections(hand, "logit_lens"), "the lens")[-1]
    assert question["reached"] == [
        {"first": 0, "reach": HEAD_OFF},
        {"first": last, "reach": both},
    ]


def test_nothing_is_asked_about_the_newest_token_while_the_text_is_written(
    page: Page, site: Callable[..., Site]
) -> None:
    hand = Hand(page, site(delay=0.03))
    hand.play.set(max_tokens=200, seed=5)
    hand.play.ask()
    hand.play.wait_tokens(3)
    hand.open().cell("head 2.3").click()
    hand.play.wait_tokens(30)
    expect(hand.panel.locator(".rc-next")).to_contain_text("Choose one of its tokens")
    assert inspections(hand, "logit_lens") == []
    pin(hand, 2)
    until(page, lambda: len(inspections(hand, "logit_lens")) == 2, "both questions")
    hand.settle(200)
