"""Continue: the same run goes on, by the ids of its tokens and from its place in the seed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, expect

from e2e.bundled import written_by
from e2e.lookout import Wire
from e2e.playground import PATIENCE_MS, Playground, until
from e2e.reach import Hand
from e2e.site import Site
from gpu import ChangeAt, Interventions, SamplingParams
from gpu.events import Token
from tests.app.fake_tokenizer import STORY

ASK = "Tell me a story"
PLAIN = {"temperature": "1", "top_k": "0", "top_p": "1", "min_p": "0", "repetition_penalty": "1"}
HEAD_OFF = {"heads": [{"layer": 2, "head": 3, "factor": 0}]}
N = 80
SLOW = 0.04
"""Seconds of a token: a busy machine takes two to stop a run or to move a slider."""


def begun(page: Page, here: Site, n: int, **settings: Any) -> tuple[Playground, Wire]:
    """A page that begins to write `n` sampled tokens."""
    wire = Wire(page)
    play = Playground(page, here.url).open()
    play.set(**{**PLAIN, "seed": 5, "max_tokens": n, **settings})
    play.ask(ASK)
    return play, wire


def stopped(page: Page, here: Site, n: int = N, **settings: Any) -> tuple[Playground, Wire, int]:
    """A page whose run was stopped, and after how many of its `n` tokens."""
    play, wire = begun(page, here, n, **settings)
    play.wait_tokens(8)
    play.stop.click()
    play.wait_done()
    return play, wire, len(play.numbers())


def go_on(play: Playground, n: int) -> None:
    """Continue, until there are `n` tokens, and no more than those."""
    play.carry_on.click()
    play.wait_tokens(n)
    play.wait_done()
    assert play.numbers() == list(range(n))


def requests(wire: Wire) -> list[dict[str, Any]]:
    return [message for message in wire.sent if message["type"] == "generate"]


def ids(wire: Wire) -> list[int]:
    return [event["id"] for event in wire.events("token")]


def written(here: Site, n: int = N, **settings: Any) -> list[Token]:
    """What the engine writes when nobody interrupts it."""
    return here.reference(ASK, **{"seed": 5, "temperature": 1.0, "max_tokens": n, **settings})


def assert_is(play: Playground, wire: Wire, tokens: list[Token]) -> None:
    assert ids(wire) == [token.id for token in tokens]
    assert play.text() == "".join(token.text for token in tokens)


def test_a_stopped_run_writes_the_rest_of_what_it_would_have(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site(delay=SLOW)
    play, wire, n = stopped(page, here)
    assert n < N
    go_on(play, N)
    assert_is(play, wire, written(here))
    first, rest = requests(wire)
    assert rest["ids"][-n:] == ids(wire)[:n]
    assert rest["written"] == n
    own = {"first_index": n, "max_tokens": N - n, "seed": 5}
    assert rest["params"] == first["params"] | own
    expect(play.stats).to_contain_text("max tokens reached")
    marks = play.answer.locator(".mark-change").all_inner_texts()
    assert marks == ["continued"], "nothing was changed"


def test_a_completion_goes_on_too_and_its_second_rest(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site(delay=SLOW)
    wire = Wire(page)
    play = Playground(page, here.url).open()
    page.get_by_text("Completion", exact=True).click()
    play.set(**PLAIN, seed=5, max_tokens=N)
    play.ask("Once upon")
    for n in (8, 20):
        play.wait_tokens(n)
        play.stop.click()
        play.wait_done()
        play.carry_on.click()
    play.wait_tokens(N)
    play.wait_done()
    told = here.reference("Once upon", chat=False, seed=5, temperature=1.0, max_tokens=N)
    assert ids(wire) == [token.id for token in told]
    assert play.text() == "Once upon" + "".join(token.text for token in told)
    assert (
        requests(wire)[-1]["params"]["max_tokens"]
        == N - requests(wire)[-1]["params"]["first_index"]
    )


def test_a_full_count_begins_anew(page: Page, site: Callable[..., Site]) -> None:
    here = site()
    play, wire = begun(page, here, 12)
    play.wait_tokens(12)
    play.wait_done()
    go_on(play, 24)
    assert_is(play, wire, written(here, 24))
    assert requests(wire)[-1]["params"]["max_tokens"] == 12


def test_what_was_changed_while_it_wrote_and_while_it_rested_acts(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site(delay=SLOW)
    play, wire = begun(page, here, N)
    play.wait_tokens(5)
    play.set(temperature="0.6")
    until(page, lambda: wire.events("updated"), "the acknowledgement")
    index = wire.events("updated")[0]["index"]
    play.wait_tokens(index + 4)
    play.stop.click()
    play.wait_done()
    n = len(play.numbers())
    play.set(top_k="3")
    go_on(play, N)
    marks = play.answer.locator(".mark-change[data-at]")
    expect(marks).to_have_text(["temperature 1 → 0.6", "top-k 0 → 3"])
    places = marks.evaluate_all("(all) => all.map((node) => Number(node.dataset.at))")
    assert places == [index, n]
    kept = [event["n_kept"] for event in wire.events("token")]
    assert max(kept[n:]) <= 3 < min(kept[:n])
    assert requests(wire)[-1]["params"]["temperature"] == 0.6
    assert [e["draw"] for e in wire.events("token")] == [token.draw for token in written(here)]


def test_a_slider_moved_in_the_rest_leaves_its_count_alone(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site(delay=SLOW)
    play, wire, n = stopped(page, here)
    play.carry_on.click()
    play.wait_tokens(n + 3)
    play.set(temperature="0.9")
    play.wait_tokens(N)
    play.wait_done()
    assert play.numbers() == list(range(N)), "as many as were asked for in all"
    updates = [message["params"] for message in wire.sent if message["type"] == "update"]
    assert updates == [{"temperature": 0.9}]


def test_what_is_changed_inside_the_model_stays_and_is_not_told_again(
    page: Page, site: Callable[..., Site]
) -> None:
    hand = Hand(page, site(delay=SLOW))
    hand.play.set(**PLAIN, seed=5, max_tokens=N)
    hand.open().cell("head 2.3").click()
    page.keyboard.press("Escape")
    hand.play.ask(ASK)
    hand.play.wait_tokens(8)
    hand.play.stop.click()
    hand.play.wait_done()
    go_on(hand.play, N)
    first, rest = hand.requests()
    assert [first["reach"], rest["reach"]] == [HEAD_OFF] * 2
    assert rest["reached"] == [{"first": 0, "reach": HEAD_OFF}]
    off = (ChangeAt(0, reach=msgspec.convert(HEAD_OFF, Interventions)),)
    assert ids(hand.wire) == [token.id for token in written(hand.site, script=off)]
    marks = hand.play.answer.locator(".mark-change")
    expect(marks).to_have_text(["head 2.3 off", "continued"])


def test_what_is_undone_meanwhile_no_longer_acts_but_did(
    page: Page, site: Callable[..., Site]
) -> None:
    hand = Hand(page, site(delay=SLOW))
    hand.play.set(**PLAIN, seed=5, max_tokens=N)
    hand.open().cell("head 2.3").click()
    page.keyboard.press("Escape")
    hand.play.ask(ASK)
    hand.play.wait_tokens(8)
    hand.play.stop.click()
    hand.play.wait_done()
    n = len(hand.ids())
    hand.open().button("Reset").click()
    page.keyboard.press("Escape")
    go_on(hand.play, N)
    rest = hand.requests()[-1]
    assert "reach" not in rest
    assert rest["reached"] == [{"first": 0, "reach": HEAD_OFF}]
    assert hand.ids() == [token.id for token in written(hand.site)][n:]
    mark = hand.play.answer.locator(".mark-change[data-at]").last
    expect(mark).to_have_text("reset")
    expect(mark).to_have_attribute("data-at", str(n))


def test_a_stop_string_is_text_once_more_follows(page: Page, site: Callable[..., Site]) -> None:
    here = site()
    play, wire = begun(page, here, 40, temperature="0", **{"stop-strings": "fox named"})
    play.wait_done()
    assert play.text() == STORY.partition("fox named")[0]
    n = len(play.numbers())
    play.carry_on.click()
    play.wait_tokens(n + 5)
    play.wait_done()
    assert play.text() == STORY[: len(play.text())]
    assert requests(wire)[-1]["params"]["max_tokens"] == 40


def test_the_end_of_a_text_is_left_out(page: Page, site: Callable[..., Site]) -> None:
    here = site(ends=True, text="A fox. The end.")
    play, wire = begun(page, here, 40, temperature="0")
    play.wait_done()
    *said, end = wire.events("token")
    assert end["eos"]
    play.carry_on.click()
    play.wait_tokens(len(said) + 4)
    rest = requests(wire)[-1]
    assert rest["ids"][-len(said) :] == [event["id"] for event in said]
    assert rest["params"]["first_index"] == len(said) + 1, "that number was drawn"


@pytest.mark.parametrize("when", ["resting", "writing"])
def test_a_reload_forgets_nothing_of_it(page: Page, site: Callable[..., Site], when: str) -> None:
    here = site(delay=SLOW)
    play, wire, n = stopped(page, here)
    if when == "writing":
        play.carry_on.click()
        play.wait_tokens(n + 3)
        page.reload()
        play.wait_tokens(N)
    else:
        page.reload()
        play.wait_ready()
        play.wait_tokens(n)
        play.carry_on.click()
        play.wait_tokens(N)
    play.wait_done()
    assert play.numbers() == list(range(N))
    assert play.text() == "".join(token.text for token in written(here))
    assert len(requests(wire)) == 2
    play.set(top_k="5")  # of a rest: its count is known after a reload, too
    assert requests(wire)[-1]["params"]["max_tokens"] == N - n


OTHER_MODEL = """async () => {
  const { lastTurn, shownAnswer } = await import("/static/js/state.js");
  shownAnswer(lastTurn()).segment.model = "another";
}"""


def test_the_ids_of_another_model_are_not_sent(page: Page, site: Callable[..., Site]) -> None:
    """The server changed its model: the text is all that the two share."""
    play, wire = begun(page, site(), 12)
    play.wait_tokens(12)
    play.wait_done()
    text = play.text()
    page.evaluate(OTHER_MODEL)
    play.core.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".cands .w:enabled")).to_have_count(0)
    play.carry_on.click()
    play.wait_tokens(24)
    play.wait_done()
    rest = requests(wire)[-1]
    assert "ids" not in rest
    assert rest["messages"][-1] == {"role": "assistant", "content": text}
    assert rest["continue_final"]


CUT_CHARACTER = """async () => {
  const { Answer } = await import("/static/js/answer.js");
  const params = {temperature: 1, top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1,
    max_tokens: 2, seed: "5", first_index: 0};
  const accepted = (ids, texts) => ({type: "accepted", params, capture: false, context: 99, texts,
    prompt: ids.map((id) => ({id, text: ""})), position: 0});
  const token = (index, id, text) => ({type: "token", index, id, text, kv_blocks: 1});
  const answer = new Answer();
  const told = [accepted([1], []), token(0, 2, "a"), token(1, 3, "\\ufffd")];
  const first = answer.begin("a", {prompt: "x", params});
  told.forEach((event, i) => answer.take(first, i + 1, event));
  answer.take(first, 4, {type: "done", reason: "length", timings: {}});
  const before = [answer.text, answer.edition];
  const rest = answer.begin("b", {ids: [1, 2, 3], written: 2, params});
  answer.take(rest, 1, accepted([1, 2, 3], ["a", ""]));
  answer.take(rest, 2, token(0, 4, "é"));
  return {before: before[0], after: answer.text, redrawn: answer.edition > before[1] + 1,
    told: told[2].text, asked: rest.asked, marks: answer.marks.length};
}"""


def test_a_character_cut_by_the_end_becomes_whole(loaded: Page) -> None:
    """The events keep what was told at their time: a replay shows that, until it goes on."""
    assert loaded.evaluate(CUT_CHARACTER) == {
        "before": "a\ufffd",
        "after": "aé",
        "redrawn": True,
        "told": "\ufffd",
        "asked": {"prompt": "xa"},
        "marks": 0,
    }


STOPPED_AT_ONCE = """async () => {
  const { Answer } = await import("/static/js/answer.js");
  const params = {temperature: 1, top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1,
    max_tokens: 9, seed: "5", first_index: 0};
  const reach = {mlp: [{layer: 1, factor: 0}]};
  const accepted = {type: "accepted", params, capture: false, context: 99, texts: [],
    prompt: [{id: 1, text: ""}, {id: 2, text: ""}], position: 0};
  const answer = new Answer();
  const first = answer.begin("a", {prompt: "x", params, reach});
  const warmer = {...params, temperature: 2};
  answer.take(first, 1, accepted);
  answer.take(first, 2, {type: "updated", index: 0, params: warmer, capture: false});
  answer.take(first, 3, {type: "done", reason: "cancelled", timings: {}});
  const request = {ids: [1, 2], written: 0, params: warmer, reach, reached: [{first: 0, reach}]};
  const rest = answer.begin("b", request);
  answer.take(rest, 1, {...accepted, params: warmer});
  return answer.marks.filter(({told}) => told.length).map(({index, told}) => [index, told[0].name]);
}"""


def test_a_run_that_was_stopped_before_its_first_token_tells_what_it_began_with(
    loaded: Page,
) -> None:
    assert loaded.evaluate(STOPPED_AT_ONCE) == [[0, "reach"]]


# ---- with the real engine ----------------------------------------------------------------------


def test_a_killed_engine_goes_on_with_the_very_tokens(page: Page, bundled: Site) -> None:
    """Sampled, and with a head switched off while it was written: the new process computes the
    text before it again, each token under what it was computed under."""
    hand, n = Hand(page, bundled), 100
    hand.play.set(seed=21, max_tokens=n, temperature="1.3", top_k="0", repetition_penalty="1.1")
    hand.play.ask("Tell me a story about a fox who finds a lantern")
    hand.settle(n)
    hand.open().button("Write it again").click()
    expect(page.locator("#version")).to_have_text("2/2")
    hand.play.wait_tokens(10)
    hand.cell("layer 3").focus()
    page.keyboard.press("Space")
    index = until(page, hand.acknowledged, "the acknowledgement")[0]["index"]
    hand.play.wait_tokens(index + 10)
    kill(bundled)
    expect(hand.play.notice).to_contain_text("The engine is restarting")
    expect(hand.play.notice).to_contain_text("The writing was interrupted", timeout=PATIENCE_MS)
    cut = len(hand.ids(1))
    page.keyboard.press("Escape")
    go_on(hand.play, n)
    broken = hand.ids(1) + hand.ids(2)
    assert broken[:index] == hand.ids(0)[:index]
    assert broken[index:] != hand.ids(0)[index:], "the layer was off"
    rest = hand.requests()[2]
    first = len(rest["ids"]) - cut - 1 + index
    assert [entry["first"] for entry in rest["reached"]] == [first]
    assert len(broken) == n
    assert broken == undisturbed(hand, bundled, index)


def kill(site: Site) -> None:
    pid = site.engine.pid  # type: ignore[attr-defined]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def undisturbed(hand: Hand, bundled: Site, index: int) -> list[int]:
    """The same run, with the same change at the same token, by an engine that lives on."""
    request = hand.requests()[1]
    prompt = [token["id"] for token in hand.wire.events("accepted")[0]["prompt"]]
    reach = msgspec.convert(hand.acknowledged()[0]["reach"], Interventions)
    params = msgspec.convert(request["params"], SamplingParams)
    script = (ChangeAt(index, reach=reach),)
    return [token.id for token in written_by(bundled, prompt, params, script)]
