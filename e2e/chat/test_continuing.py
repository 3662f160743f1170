"""Continue: the same run goes on, by the ids of its tokens and from its place in the seed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, expect

from e2e.bundled import engine_tokens
from e2e.interventions.reach import ReachPanel
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TIMEOUT_MS, until
from gpu import Interventions, SamplingParams, ScheduledUpdate
from gpu.events import Token
from tests.app.fake_tokenizer import STORY

ASK = "Tell me a story"
PLAIN = {"temperature": "1", "top_k": "0", "top_p": "1", "min_p": "0", "repetition_penalty": "1"}
HEAD_OFF = {"heads": [{"layer": 2, "head": 3, "factor": 0}]}
N = 80
SLOW = 0.04
"""Seconds of a token: a busy machine takes two to stop a run or to move a slider."""


def begun(page: Page, here: Site, n: int, **settings: Any) -> tuple[Playground, MessageLog]:
    """A page that begins to write `n` sampled tokens."""
    play = Playground(page, here).open()
    messages = play.messages
    play.set(**{**PLAIN, "seed": 5, "max_tokens": n, **settings})
    play.ask(ASK)
    return play, messages


def stopped(
    page: Page, here: Site, n: int = N, **settings: Any
) -> tuple[Playground, MessageLog, int]:
    """A page whose run was stopped, and after how many of its `n` tokens."""
    play, messages = begun(page, here, n, **settings)
    play.wait_tokens(8)
    play.stop.click()
    play.wait_done()
    return play, messages, len(play.numbers())


def go_on(play: Playground, n: int) -> None:
    """Continue, until there are `n` tokens, and no more than those."""
    play.continue_button.click()
    play.wait_tokens(n)
    play.wait_done()
    assert play.numbers() == list(range(n))


def requests(messages: MessageLog) -> list[dict[str, Any]]:
    return [message for message in messages.sent if message["type"] == "generate"]


def ids(messages: MessageLog) -> list[int]:
    return [event["id"] for event in messages.events("token")]


def written(here: Site, n: int = N, **settings: Any) -> list[Token]:
    """Return the tokens that the engine writes without interruption."""
    return here.reference(ASK, **{"seed": 5, "temperature": 1.0, "max_tokens": n, **settings})


def assert_is(play: Playground, messages: MessageLog, tokens: list[Token]) -> None:
    assert ids(messages) == [token.id for token in tokens]
    assert play.text() == "".join(token.text for token in tokens)


@pytest.mark.quick
def test_a_stopped_run_writes_the_rest_of_what_it_would_have(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site(delay=SLOW)
    play, messages, n = stopped(page, here)
    assert n < N
    go_on(play, N)
    assert_is(play, messages, written(here))
    first, rest = requests(messages)
    assert rest["ids"][-n:] == ids(messages)[:n]
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
    play = Playground(page, here).open()
    messages = play.messages
    page.get_by_text("Completion", exact=True).click()
    play.set(**PLAIN, seed=5, max_tokens=N)
    play.ask("Once upon")
    for n in (8, 20):
        play.wait_tokens(n)
        play.stop.click()
        play.wait_done()
        play.continue_button.click()
    play.wait_tokens(N)
    play.wait_done()
    told = here.reference("Once upon", chat=False, seed=5, temperature=1.0, max_tokens=N)
    assert ids(messages) == [token.id for token in told]
    assert play.text() == "Once upon" + "".join(token.text for token in told)
    assert (
        requests(messages)[-1]["params"]["max_tokens"]
        == N - requests(messages)[-1]["params"]["first_index"]
    )


def test_a_full_count_begins_anew(page: Page, site: Callable[..., Site]) -> None:
    here = site()
    play, messages = begun(page, here, 12)
    play.wait_tokens(12)
    play.wait_done()
    go_on(play, 24)
    assert_is(play, messages, written(here, 24))
    assert requests(messages)[-1]["params"]["max_tokens"] == 12


def test_what_was_changed_while_it_wrote_and_while_it_rested_acts(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site(delay=SLOW)
    play, messages = begun(page, here, N)
    play.wait_tokens(5)
    play.set(temperature="0.6")
    until(page, lambda: messages.events("updated"), "the acknowledgement")
    index = messages.events("updated")[0]["index"]
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
    kept = [event["n_kept"] for event in messages.events("token")]
    assert max(kept[n:]) <= 3 < min(kept[:n])
    assert requests(messages)[-1]["params"]["temperature"] == 0.6
    assert [e["draw"] for e in messages.events("token")] == [token.draw for token in written(here)]


def test_a_slider_moved_in_the_rest_leaves_its_count_alone(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site(delay=SLOW)
    play, messages, n = stopped(page, here)
    play.continue_button.click()
    play.wait_tokens(n + 3)
    play.set(temperature="0.9")
    play.wait_tokens(N)
    play.wait_done()
    assert play.numbers() == list(range(N)), "as many as were asked for in all"
    updates = [message["params"] for message in messages.sent if message["type"] == "update"]
    assert updates == [{"temperature": 0.9}]


def test_what_is_changed_inside_the_model_stays_and_is_not_told_again(
    page: Page, site: Callable[..., Site]
) -> None:
    reach_panel = Playground(page, site(delay=SLOW)).open().reach
    reach_panel.play.set(**PLAIN, seed=5, max_tokens=N)
    reach_panel.open().cell("head 2.3").click()
    page.keyboard.press("Escape")
    reach_panel.play.ask(ASK)
    reach_panel.play.wait_tokens(8)
    reach_panel.play.stop.click()
    reach_panel.play.wait_done()
    go_on(reach_panel.play, N)
    first, rest = reach_panel.requests()
    assert [first["reach"], rest["reach"]] == [HEAD_OFF] * 2
    assert rest["reached"] == [{"first": 0, "reach": HEAD_OFF}]
    off = (ScheduledUpdate(0, interventions=msgspec.convert(HEAD_OFF, Interventions)),)
    assert ids(reach_panel.messages) == [
        token.id for token in written(reach_panel.play.site, updates=off)
    ]
    marks = reach_panel.play.answer.locator(".mark-change")
    expect(marks).to_have_text(["head 2.3 off", "continued"])


def test_what_is_undone_meanwhile_no_longer_acts_but_did(
    page: Page, site: Callable[..., Site]
) -> None:
    reach_panel = Playground(page, site(delay=SLOW)).open().reach
    reach_panel.play.set(**PLAIN, seed=5, max_tokens=N)
    reach_panel.open().cell("head 2.3").click()
    page.keyboard.press("Escape")
    reach_panel.play.ask(ASK)
    reach_panel.play.wait_tokens(8)
    reach_panel.play.stop.click()
    reach_panel.play.wait_done()
    n = len(reach_panel.ids())
    reach_panel.open().button("Reset").click()
    page.keyboard.press("Escape")
    go_on(reach_panel.play, N)
    rest = reach_panel.requests()[-1]
    assert "reach" not in rest
    assert rest["reached"] == [{"first": 0, "reach": HEAD_OFF}]
    assert reach_panel.ids() == [token.id for token in written(reach_panel.play.site)][n:]
    mark = reach_panel.play.answer.locator(".mark-change[data-at]").last
    expect(mark).to_have_text("reset")
    expect(mark).to_have_attribute("data-at", str(n))


def test_a_stop_string_is_text_once_more_follows(page: Page, site: Callable[..., Site]) -> None:
    here = site()
    play, messages = begun(page, here, 40, temperature="0", **{"stop-strings": "fox named"})
    play.wait_done()
    assert play.text() == STORY.partition("fox named")[0]
    n = len(play.numbers())
    play.continue_button.click()
    play.wait_tokens(n + 5)
    play.wait_done()
    assert play.text() == STORY[: len(play.text())]
    assert requests(messages)[-1]["params"]["max_tokens"] == 40


def test_the_end_of_a_text_is_left_out(page: Page, site: Callable[..., Site]) -> None:
    here = site(ends=True, text="A fox. The end.")
    play, messages = begun(page, here, 40, temperature="0")
    play.wait_done()
    *said, end = messages.events("token")
    assert end["eos"]
    play.continue_button.click()
    play.wait_tokens(len(said) + 4)
    rest = requests(messages)[-1]
    assert rest["ids"][-len(said) :] == [event["id"] for event in said]
    assert rest["params"]["first_index"] == len(said) + 1, "that number was drawn"


@pytest.mark.parametrize("when", ["resting", "writing"])
def test_a_reload_forgets_nothing_of_it(page: Page, site: Callable[..., Site], when: str) -> None:
    here = site(delay=SLOW)
    play, messages, n = stopped(page, here)
    if when == "writing":
        play.continue_button.click()
        play.wait_tokens(n + 3)
        page.reload()
        play.wait_tokens(N)
    else:
        page.reload()
        play.wait_ready()
        play.wait_tokens(n)
        play.continue_button.click()
        play.wait_tokens(N)
    play.wait_done()
    assert play.numbers() == list(range(N))
    assert play.text() == "".join(token.text for token in written(here))
    assert len(requests(messages)) == 2
    play.set(top_k="5")  # of a rest: its count is known after a reload, too
    assert requests(messages)[-1]["params"]["max_tokens"] == N - n


OTHER_MODEL = """async () => {
  const { lastTurn, shownAnswer } = await import("/static/js/state.js");
  shownAnswer(lastTurn()).segment.model = "another";
}"""


def test_the_ids_of_another_model_are_not_sent(page: Page, site: Callable[..., Site]) -> None:
    """The server changed its model: the text is all that the two share."""
    play, messages = begun(page, site(), 12)
    play.wait_tokens(12)
    play.wait_done()
    text = play.text()
    page.evaluate(OTHER_MODEL)
    play.core.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".cands .w:enabled")).to_have_count(0)
    play.continue_button.click()
    play.wait_tokens(24)
    play.wait_done()
    rest = requests(messages)[-1]
    assert "ids" not in rest
    assert rest["messages"][-1] == {"role": "assistant", "content": text}
    assert rest["continue_final"]


CUT_CHARACTER = """async () => {
  const { Answer } = await import("/static/js/turns/answer.js");
  const params = {temperature: 1, top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1,
    max_tokens: 2, seed: "5", first_index: 0};
  const accepted = (ids, texts) => ({type: "accepted", params, capture: false, context: 99, texts,
    prompt: ids.map((id) => ({id, text: ""})), position: 0});
  const token = (index, id, text) => ({type: "token", index, id, text, kv_blocks: 1});
  const answer = new Answer();
  const told = [accepted([1], []), token(0, 2, "a"), token(1, 3, "\\ufffd")];
  const first = answer.begin("a", {prompt: "x", params});
  told.forEach((event, i) => answer.applyEvent(first, i + 1, event));
  answer.applyEvent(first, 4, {type: "done", reason: "length", timings: {}});
  const before = [answer.text, answer.edition];
  const rest = answer.begin("b", {ids: [1, 2, 3], written: 2, params});
  answer.applyEvent(rest, 1, accepted([1, 2, 3], ["a", ""]));
  answer.applyEvent(rest, 2, token(0, 4, "é"));
  return {before: before[0], after: answer.text, redrawn: answer.edition > before[1] + 1,
    told: told[2].text, asked: rest.originalRequest, marks: answer.marks.length};
}"""


@pytest.mark.quick
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
  const { Answer } = await import("/static/js/turns/answer.js");
  const params = {temperature: 1, top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1,
    max_tokens: 9, seed: "5", first_index: 0};
  const reach = {mlp: [{layer: 1, factor: 0}]};
  const accepted = {type: "accepted", params, capture: false, context: 99, texts: [],
    prompt: [{id: 1, text: ""}, {id: 2, text: ""}], position: 0};
  const answer = new Answer();
  const first = answer.begin("a", {prompt: "x", params, reach});
  const warmer = {...params, temperature: 2};
  answer.applyEvent(first, 1, accepted);
  answer.applyEvent(first, 2, {type: "updated", index: 0, params: warmer, capture: false});
  answer.applyEvent(first, 3, {type: "done", reason: "cancelled", timings: {}});
  const request = {ids: [1, 2], written: 0, params: warmer, reach, reached: [{first: 0, reach}]};
  const rest = answer.begin("b", request);
  answer.applyEvent(rest, 1, {...accepted, params: warmer});
  const told = answer.marks.filter(({shown}) => shown.length);
  return told.map(({index, shown}) => [index, shown[0].name]);
}"""


def test_a_run_that_was_stopped_before_its_first_token_tells_what_it_began_with(
    loaded: Page,
) -> None:
    assert loaded.evaluate(STOPPED_AT_ONCE) == [[0, "reach"]]


# ---- with the real engine ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_engine_goes_on_with_the_very_tokens(page: Page, bundled: Site) -> None:
    """Sampled, and with a head switched off while it was written: the new process computes the
    text before it again, each token under what it was computed under."""
    reach_panel, n = Playground(page, bundled).open().reach, 100
    reach_panel.play.set(
        seed=21, max_tokens=n, temperature="1.3", top_k="0", repetition_penalty="1.1"
    )
    reach_panel.play.ask("Tell me a story about a fox who finds a lantern")
    reach_panel.settle(n)
    reach_panel.open().button("Run again").click()
    expect(page.locator("#version")).to_have_text("2/2")
    reach_panel.play.wait_tokens(10)
    reach_panel.cell("layer 3").focus()
    page.keyboard.press("Space")
    index = until(page, reach_panel.acknowledged, "the acknowledgement")[0]["index"]
    reach_panel.play.wait_tokens(index + 10)
    kill(bundled)
    expect(reach_panel.play.notice).to_contain_text("The engine is restarting")
    expect(reach_panel.play.notice).to_contain_text(
        "Generation was interrupted", timeout=TIMEOUT_MS
    )
    cut = len(reach_panel.ids(1))
    page.keyboard.press("Escape")
    go_on(reach_panel.play, n)
    broken = reach_panel.ids(1) + reach_panel.ids(2)
    assert broken[:index] == reach_panel.ids(0)[:index]
    assert broken[index:] != reach_panel.ids(0)[index:], "the layer was off"
    rest = reach_panel.requests()[2]
    first = len(rest["ids"]) - cut - 1 + index
    assert [entry["first"] for entry in rest["reached"]] == [first]
    assert len(broken) == n
    assert broken == undisturbed(reach_panel, bundled, index)


def kill(site: Site) -> None:
    pid = site.engine.pid  # type: ignore[attr-defined]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def undisturbed(reach_panel: ReachPanel, bundled: Site, index: int) -> list[int]:
    """The same run, with the same change at the same token, by an engine that lives on."""
    request = reach_panel.requests()[1]
    prompt = [token["id"] for token in reach_panel.messages.events("accepted")[0]["prompt"]]
    reach = msgspec.convert(reach_panel.acknowledged()[0]["reach"], Interventions)
    params = msgspec.convert(request["params"], SamplingParams)
    updates = (ScheduledUpdate(index, interventions=reach),)
    return [token.id for token in engine_tokens(bundled, prompt, params, updates)]
