"""The bundled model is reached into while it writes: what is announced is what happens."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from playwright.sync_api import Page, expect

from app import tale
from e2e.bundled import answer_of
from e2e.playground import until
from e2e.reach import Hand
from e2e.site import Site
from gpu import Tokenizer
from gpu.inspection import Losses
from gpu.interventions import Interventions, LayerFactor, Patch, ReachedFrom

ASK = "Tell me a story about a fox who finds a lantern"
N = 160
PUT_AGAIN = """async (at) => {
  const { lastTurn, shownAnswer } = await import("/static/js/state.js");
  const answer = shownAnswer(lastTurn());
  (await import("/static/js/forcing.js")).force(answer, at, [answer.tokens[at]]);
}"""
LAYER_OFF = Interventions(attention=(LayerFactor(0, 0.0),), mlp=(LayerFactor(0, 0.0),))


def test_the_text_changes_from_the_announced_token_on_and_comes_back(
    page: Page, bundled: Site
) -> None:
    hand = Hand(page, bundled)
    hand.play.set(max_tokens=N, seed=11)
    hand.play.ask(ASK)
    hand.settle(N)
    hand.open()
    hand.button("Write it again").click()
    hand.wait_requests(2)
    hand.cell("layer 0").focus()
    hand.play.wait_tokens(2)
    page.keyboard.press("Space")
    index = until(page, hand.acknowledged, "the acknowledgement")[0]["index"]
    hand.settle(N)
    alone, reached = hand.ids(0), hand.ids(1)
    assert reached[:index] == alone[:index]
    assert index < N
    assert reached[index:] != alone[index:], "the first layer was off"
    assert_surprise_is_the_runs(hand, bundled, index)
    expect(hand.twin).to_contain_text("As version 1 for")
    same = int(re.search(r"for (\d+) tokens", hand.twin.inner_text())[1])  # type: ignore[index]
    assert same >= index
    assert_a_branch_is_the_run(hand, index)
    hand.button("Reset").click()
    hand.again(4, N)
    assert hand.ids(3) == alone
    expect(hand.twin).to_have_text(f"The same {N} tokens as version 1")


def assert_a_branch_is_the_run(hand: Hand, index: int) -> None:
    """Where a token is put in the place of itself, after a change, the text goes on as it did: the
    prompt was computed without the change, which a branch must not forget."""
    ids, at = hand.ids(1), index + 3
    first = hand.prompt_length() - 1 + index  # of the run: the branch's own prompt is longer
    hand.page.evaluate(PUT_AGAIN, at)
    request = hand.wait_requests(3)
    off = json.loads(msgspec.json.encode(LAYER_OFF))
    assert request["reach"] == off
    assert request["reached"] == [{"first": first, "reach": off}]
    hand.settle(N)
    assert hand.ids(2)[: N - at - 1] == ids[at + 1 :]
    prompt = hand.wire.events("accepted")[-1]["prompt"]
    assert hand.wire.events("done")[-1]["timings"]["cache_n"] == len(prompt) - 1


def assert_surprise_is_the_runs(hand: Hand, bundled: Site, index: int) -> None:
    """Asked under the layer's being off from the announced token on, and only so, the engine finds
    every token as likely as the run did: positions and indexes are the same on both sides."""
    prompt = [token["id"] for token in hand.wire.events("accepted")[-1]["prompt"]]
    events = hand.wire.events("token")[-N:]
    ids = prompt + [event["id"] for event in events]
    first = len(prompt) - 1
    reached = (ReachedFrom(first + index, LAYER_OFF),)
    logprobs = [event["logprob"] for event in events]
    answer = answer_of(bundled, Losses(ids, 5, first, reached=reached))
    assert answer["logprob"].tolist() == pytest.approx(logprobs, abs=1e-4)
    plain = answer_of(bundled, Losses(ids, 5, first))["logprob"].tolist()
    assert plain[:index] == pytest.approx(logprobs[:index], abs=1e-4)
    assert plain[index:] != pytest.approx(logprobs[index:], abs=1e-1)


def test_a_steered_story_goes_to_sea(page: Page, bundled: Site) -> None:
    hand = Hand(page, bundled)
    hand.play.set(max_tokens=40, seed=11, temperature=0)
    hand.play.ask(ASK)
    hand.settle(20)
    hand.open()
    hand.button("at sea").click()
    expect(hand.look.source).to_contain_text("with what is set from this one on", timeout=15_000)
    hand.button("Write it again").click()
    hand.wait_requests(2)
    hand.settle(20)
    assert hand.ids(1) != hand.ids(0)
    (steer,) = hand.requests()[1]["reach"]["steer"]
    assert steer["toward"] == "The ship sailed over the sea"
    expect(hand.look.source).to_contain_text("as they ran, and with nothing changed inside")
    expect(hand.panel.locator(".rc-tokens .own .n")).to_have_text(
        re.compile(r"^\S+ → \S+$"), timeout=15_000
    )


def test_a_word_of_the_prompt_becomes_that_of_another(page: Page, bundled: Site) -> None:
    hand, n = Hand(page, bundled), 40
    hand.play.set(max_tokens=n, seed=11, temperature=0)
    hand.play.ask(ASK)
    hand.settle(n)
    prompt = hand.wire.events("accepted")[-1]["prompt"]
    position = next(i for i, token in enumerate(prompt) if token["text"] == " fox")
    hand.open()
    page.evaluate(
        "async (at) => (await import('/static/js/view.js')).pin(at)", position - len(prompt)
    )
    other = "Tell me a story about a bear"
    n_other = len(Tokenizer.load(tale.model_dir()).encode(other))
    hand.choose_piece(other, n_other - 1)
    hand.button("Write it again").click()
    hand.wait_requests(2)
    hand.settle(n)
    patch = Patch(0, position, other, n_other - 1)
    assert hand.requests()[1]["reach"] == {"patch": [msgspec.to_builtins(patch)]}
    assert "bear" in hand.play.text()
    assert "fox" not in hand.play.text(), "no other token of the prompt names the animal"
    assert_surprise_is_that_under(hand, bundled, ReachedFrom(0, Interventions(patch=(patch,))))


def assert_surprise_is_that_under(hand: Hand, bundled: Site, reached: ReachedFrom) -> None:
    """The engine finds every token of the last run as likely as the run did, and without `reached`
    it does not."""
    prompt = [token["id"] for token in hand.wire.events("accepted")[-1]["prompt"]]
    events = hand.wire.events("token")[-len(hand.ids()) :]
    ids, first = prompt + [event["id"] for event in events], len(prompt) - 1
    logprobs = [event["logprob"] for event in events]
    under = answer_of(bundled, Losses(ids, 5, first, reached=(reached,)))["logprob"].tolist()
    assert under == pytest.approx(logprobs, abs=1e-4)
    plain = answer_of(bundled, Losses(ids, 5, first))["logprob"].tolist()
    assert plain != pytest.approx(logprobs, abs=1e-1)
