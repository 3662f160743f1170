"""The bundled model is reached into while it writes: what is announced is what happens."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from playwright.sync_api import Page, expect

from app import tale
from e2e.bundled import ask_engine
from e2e.interventions.reach import ReachPanel
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from gpu import Tokenizer
from gpu.inspection.requests import Losses
from gpu.interventions.messages import Interventions, InterventionSpan, LayerFactor, Patch

ASK = "Tell me a story about a fox who finds a lantern"
N = 160
PUT_AGAIN = """async (at) => {
  const { lastTurn, shownAnswer } = await import("/static/js/state.js");
  const answer = shownAnswer(lastTurn());
  const { replaceToken } = await import("/static/js/chat/replace-token-run.js");
  replaceToken(answer, at, [answer.tokens[at]]);
}"""
LAYER_OFF = Interventions(attention=(LayerFactor(0, 0.0),), mlp=(LayerFactor(0, 0.0),))


def test_the_text_changes_from_the_announced_token_on_and_comes_back(
    page: Page, bundled: Site
) -> None:
    reach_panel = Playground(page, bundled).open().reach
    reach_panel.play.set(max_tokens=N, seed=11)
    reach_panel.play.ask(ASK)
    reach_panel.settle(N)
    reach_panel.open()
    reach_panel.button("Run again").click()
    reach_panel.wait_requests(2)
    reach_panel.cell("layer 0").focus()
    reach_panel.play.wait_tokens(2)
    page.keyboard.press("Space")
    index = until(page, reach_panel.acknowledged, "the acknowledgement")[0]["index"]
    reach_panel.settle(N)
    alone, reached = reach_panel.ids(0), reach_panel.ids(1)
    assert reached[:index] == alone[:index]
    assert index < N
    assert reached[index:] != alone[index:], "the first layer was off"
    assert_surprise_is_the_runs(reach_panel, bundled, index)
    expect(reach_panel.twin).to_contain_text("Same as version 1 for")
    same = int(re.search(r"for (\d+) tokens", reach_panel.twin.inner_text())[1])  # type: ignore[index]
    assert same >= index
    assert_a_branch_is_the_run(reach_panel, index)
    reach_panel.button("Reset").click()
    reach_panel.again(4, N)
    assert reach_panel.ids(3) == alone
    expect(reach_panel.twin).to_have_text(f"Same {N} tokens as version 1")


def assert_a_branch_is_the_run(reach_panel: ReachPanel, index: int) -> None:
    """Assert that a token replaced by itself, after a change, continues the text as before. The
    prompt was computed without the change, and so must the branch's be."""
    ids, at = reach_panel.ids(1), index + 3
    first = reach_panel.prompt_length() - 1 + index  # of the run: the branch's own prompt is longer
    reach_panel.page.evaluate(PUT_AGAIN, at)
    request = reach_panel.wait_requests(3)
    off = json.loads(msgspec.json.encode(LAYER_OFF))
    assert request["reach"] == off
    assert request["reached"] == [{"first": first, "reach": off}]
    reach_panel.settle(N)
    assert reach_panel.ids(2)[: N - at - 1] == ids[at + 1 :]
    prompt = reach_panel.messages.events("accepted")[-1]["prompt"]
    assert reach_panel.messages.events("done")[-1]["timings"]["cache_n"] == len(prompt) - 1


def assert_surprise_is_the_runs(reach_panel: ReachPanel, bundled: Site, index: int) -> None:
    """Asked under the layer's being off from the announced token on, and only so, the engine finds
    every token as likely as the run did: positions and indexes are the same on both sides."""
    prompt = [token["id"] for token in reach_panel.messages.events("accepted")[-1]["prompt"]]
    events = reach_panel.messages.events("token")[-N:]
    ids = prompt + [event["id"] for event in events]
    first = len(prompt) - 1
    reached = (InterventionSpan(first + index, LAYER_OFF),)
    logprobs = [event["logprob"] for event in events]
    answer = ask_engine(bundled, Losses(ids, 5, first, spans=reached))
    assert answer["logprob"].tolist() == pytest.approx(logprobs, abs=1e-4)
    plain = ask_engine(bundled, Losses(ids, 5, first))["logprob"].tolist()
    assert plain[:index] == pytest.approx(logprobs[:index], abs=1e-4)
    assert plain[index:] != pytest.approx(logprobs[index:], abs=1e-1)


def test_a_steered_story_goes_to_sea(page: Page, bundled: Site) -> None:
    reach_panel = Playground(page, bundled).open().reach
    reach_panel.play.set(max_tokens=40, seed=11, temperature=0)
    reach_panel.play.ask(ASK)
    reach_panel.settle(20)
    reach_panel.open()
    reach_panel.button("at sea").click()
    expect(reach_panel.look.source).to_contain_text(
        "with the current ones from this token on", timeout=15_000
    )
    reach_panel.button("Run again").click()
    reach_panel.wait_requests(2)
    reach_panel.settle(20)
    assert reach_panel.ids(1) != reach_panel.ids(0)
    (steer,) = reach_panel.requests()[1]["reach"]["steer"]
    assert steer["toward"] == "The ship sailed over the sea"
    expect(reach_panel.look.source).to_contain_text("as run, and without interventions")
    expect(reach_panel.panel.locator(".rc-tokens .own .n")).to_have_text(
        re.compile(r"^\S+ → \S+$"), timeout=15_000
    )


def test_a_word_of_the_prompt_becomes_that_of_another(page: Page, bundled: Site) -> None:
    reach_panel, n = Playground(page, bundled).open().reach, 40
    reach_panel.play.set(max_tokens=n, seed=11, temperature=0)
    reach_panel.play.ask(ASK)
    reach_panel.settle(n)
    prompt = reach_panel.messages.events("accepted")[-1]["prompt"]
    position = next(i for i, token in enumerate(prompt) if token["text"] == " fox")
    reach_panel.open()
    page.evaluate(
        "async (at) => (await import('/static/js/view.js')).pin(at)", position - len(prompt)
    )
    other = "Tell me a story about a bear"
    n_other = len(Tokenizer.load(tale.model_dir()).encode(other))
    reach_panel.choose_token(other, n_other - 1)
    reach_panel.button("Run again").click()
    reach_panel.wait_requests(2)
    reach_panel.settle(n)
    patch = Patch(0, position, other, n_other - 1)
    assert reach_panel.requests()[1]["reach"] == {"patch": [msgspec.to_builtins(patch)]}
    assert "bear" in reach_panel.play.text()
    assert "fox" not in reach_panel.play.text(), "no other token of the prompt names the animal"
    assert_surprise_is_that_under(
        reach_panel, bundled, InterventionSpan(0, Interventions(patch=(patch,)))
    )


def assert_surprise_is_that_under(
    reach_panel: ReachPanel, bundled: Site, reached: InterventionSpan
) -> None:
    """The engine finds every token of the last run as likely as the run did, and without `reached`
    it does not."""
    prompt = [token["id"] for token in reach_panel.messages.events("accepted")[-1]["prompt"]]
    events = reach_panel.messages.events("token")[-len(reach_panel.ids()) :]
    ids, first = prompt + [event["id"] for event in events], len(prompt) - 1
    logprobs = [event["logprob"] for event in events]
    under = ask_engine(bundled, Losses(ids, 5, first, spans=(reached,)))["logprob"].tolist()
    assert under == pytest.approx(logprobs, abs=1e-4)
    plain = ask_engine(bundled, Losses(ids, 5, first))["logprob"].tolist()
    assert plain != pytest.approx(logprobs, abs=1e-1)
