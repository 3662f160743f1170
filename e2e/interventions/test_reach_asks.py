"""The page asks for the effect of an intervention, and instruments ask about tokens under the
interventions that they were computed under."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.interventions.reach import ReachPanel
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until

N = 40
HEAD_OFF = {"heads": [{"layer": 2, "head": 3, "factor": 0}]}
STEER = {"layer": 3, "toward": "the sea", "away": "", "strength": 0.5}


def inspections(reach_panel: ReachPanel, kind: str, since: int = 0) -> list[dict[str, Any]]:
    """Questions among the messages from number `since` on."""
    sent = reach_panel.messages.sent[since:]
    asked = [m["question"] for m in sent if m["type"] == "inspect"]
    return [question for question in asked if question["kind"] == kind]


def pin(reach_panel: ReachPanel, index: int) -> None:
    reach_panel.page.evaluate("async (i) => (await import('/static/js/view.js')).pin(i)", index)


def reached(page: Page, here: Site) -> tuple[ReachPanel, int]:
    """An answer that was reached into while it was written, and from which position on."""
    reach_panel = Playground(page, here).open().reach
    reach_panel.play.set(max_tokens=N, seed=5)
    reach_panel.play.ask()
    reach_panel.play.wait_tokens(3)
    reach_panel.open().cell("head 2.3").click()
    index = until(page, reach_panel.acknowledged, "the acknowledgement")[0]["index"]
    reach_panel.settle(N)
    return reach_panel, reach_panel.prompt_length() + index - 1


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
    reach_panel, first = reached(page, site(delay=0.1))
    n_prompt = reach_panel.prompt_length()
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)  # what Reach itself asked both ways is on the line
    since = len(reach_panel.messages.sent)
    for name, kinds in ASKING.items():
        reach_panel.look.open(name)
        for index in (N - 2, first - n_prompt):
            pin(reach_panel, index)
            expect(reach_panel.look.message).to_be_hidden()
            page.wait_for_timeout(300)
        for kind in kinds:
            until(page, partial(inspections, reach_panel, kind, since), kind)
            for question in inspections(reach_panel, kind, since):
                expected = [{"first": first, "reach": HEAD_OFF}]
                if len(question["ids"]) <= first:
                    expected = []
                assert question.get("reached", []) == expected, kind
    lens = inspections(reach_panel, "logit_lens", since)
    assert {"reached" in question for question in lens} == {True, False}, "before it, and after"


def test_what_it_did_is_asked_both_ways(page: Page, site: Callable[..., Site]) -> None:
    reach_panel, first = reached(page, site(delay=0.1))
    pin(reach_panel, N - 1)
    expect(reach_panel.panel.locator(".rc-tokens li").first).to_be_visible()
    expect(reach_panel.look.source).to_contain_text("as run, and without interventions")
    without, now = inspections(reach_panel, "logit_lens")[-2:]
    assert "reached" not in without
    assert now["reached"] == [{"first": first, "reach": HEAD_OFF}]
    assert without["ids"] == now["ids"]
    assert now["position"] == len(now["ids"]) - 1
    rows = [row for row in reach_panel.look.csv() if row["part"] == "layer"]
    answers = [asked(reach_panel, question) for question in (without, now)]
    for row in rows:
        stage = int(row["layer"]) + 1
        for column, answer in zip(("p of the chosen token without", "with"), answers, strict=True):
            assert float(row[column]) == pytest.approx(answer["probability"][stage], rel=1e-5)
    own = reach_panel.panel.locator(".rc-tokens .own .n")
    expect(own).to_have_text(" → ".join(percent(answer["probability"][-1]) for answer in answers))
    entropies = [f"{answer['entropy'][-1]:.2f}" for answer in answers]
    expect(reach_panel.panel.locator(".rc-next")).to_contain_text(
        f"entropy {entropies[0]} → {entropies[1]} bits"
    )


ASK_AGAIN = """async (question) => {
  const { inspect } = await import("/static/js/net/inspect.js");
  const { arrays } = await inspect(question);
  return { probability: [...arrays.probability.values], entropy: [...arrays.entropy.values] };
}"""


def asked(reach_panel: ReachPanel, question: dict[str, Any]) -> dict[str, list[float]]:
    answer: dict[str, list[float]] = reach_panel.page.evaluate(ASK_AGAIN, question)
    return answer


def percent(share: float) -> str:
    value = 100 * share
    return "<0.1" if value < 0.05 else f"{value:.1f}"


def test_before_it_is_written_again_a_token_shows_what_would_come(
    page: Page, site: Callable[..., Site]
) -> None:
    reach_panel = Playground(page, site()).open().reach.write(N).open()
    expect(reach_panel.panel.locator(".rc-next")).to_contain_text("No interventions")
    pin(reach_panel, 10)
    at = reach_panel.prompt_length() + 10 - 1
    assert inspections(reach_panel, "logit_lens") == []
    reach_panel.cell("head 2.3").click()
    expect(reach_panel.look.source).to_contain_text("with the current ones from this token on")
    without, now = inspections(reach_panel, "logit_lens")
    assert "reached" not in without
    assert now["reached"] == [{"first": at, "reach": HEAD_OFF}]
    assert now["position"] == at
    reach_panel.button("Undo").click()
    expect(reach_panel.panel.locator(".rc-next")).to_contain_text("No interventions")


def test_a_run_that_begins_with_steering_is_steered_from_the_end_of_its_prompt(
    page: Page, site: Callable[..., Site]
) -> None:
    reach_panel = Playground(page, site()).open().reach.open()
    reach_panel.cell("head 2.3").click()
    reach_panel.button("Add vector").click()
    toward = reach_panel.panel.get_by_role("textbox", name="Steer toward")
    toward.fill("the sea")
    toward.press("Enter")
    page.keyboard.press("Escape")
    reach_panel.write(N)
    both = HEAD_OFF | {"steer": [STEER]}
    assert reach_panel.requests()[-1]["reach"] == both
    reach_panel.look.open("lens")
    last = reach_panel.prompt_length() - 1
    question = until(page, lambda: inspections(reach_panel, "logit_lens"), "the lens")[-1]
    assert question["reached"] == [
        {"first": 0, "reach": HEAD_OFF},
        {"first": last, "reach": both},
    ]


def test_nothing_is_asked_about_the_newest_token_while_the_text_is_written(
    page: Page, site: Callable[..., Site]
) -> None:
    reach_panel = Playground(page, site(delay=0.03)).open().reach
    reach_panel.play.set(max_tokens=200, seed=5)
    reach_panel.play.ask()
    reach_panel.play.wait_tokens(3)
    reach_panel.open().cell("head 2.3").click()
    reach_panel.play.wait_tokens(30)
    expect(reach_panel.panel.locator(".rc-next")).to_contain_text("Select a token")
    assert inspections(reach_panel, "logit_lens") == []
    pin(reach_panel, 2)
    until(page, lambda: len(inspections(reach_panel, "logit_lens")) == 2, "both questions")
    reach_panel.settle(200)
