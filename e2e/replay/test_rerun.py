"""A replay written again on an engine: the same tokens, or where they part, and why."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.chat.answer_options import AnswerOptions
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.replay import playback
from e2e.site import Site, fake_site
from e2e.waiting import until

ASK = "Tell me a story about a fox who finds a lantern"
DELAY = 0.05
"""Seconds between tokens of the fake engine."""


def write(page: Page, url: str, n: int, change_at: int = 10, **settings: Any) -> Playground:
    """An answer of `n` tokens whose temperature was moved while it was written. Down: whichever
    token it first acts on, the bundled model does not end a story here before 130 tokens."""
    play = Playground(page, url=url).open()
    play.set(max_tokens=n, **{"seed": 2**63 + 11, "temperature": 0.7, **settings})
    play.ask(ASK)
    play.wait_tokens(change_at)
    play.slide("temperature", 0.5)
    play.wait_done()
    play.wait_tokens(n)
    return play


def ids_of(messages: MessageLog, request: dict[str, Any]) -> list[int]:
    received = [
        m["event"] for m in messages.received if m["type"] == "event" and m["id"] == request["id"]
    ]
    return [event["id"] for event in received if event["type"] == "token"]


def updated_of(messages: MessageLog, request: dict[str, Any]) -> list[tuple[int, float]]:
    received = [
        m["event"] for m in messages.received if m["type"] == "event" and m["id"] == request["id"]
    ]
    found = [event for event in received if event["type"] == "updated"]
    return [(event["index"], event["params"]["temperature"]) for event in found]


def requests(messages: MessageLog) -> list[dict[str, Any]]:
    return [message for message in messages.sent if message["type"] == "generate"]


# ---- on the real engine ----------------------------------------------------------------------


def test_the_engine_writes_the_same_ids_again(page: Page, bundled: Site, tmp_path: Path) -> None:
    play = write(page, bundled.url, 120)
    messages = play.messages
    text = play.text()
    made = play.playback
    path = made.save(tmp_path / "fox.json")
    page.get_by_role("button", name="New", exact=True).click()
    made.open(path)
    made.again.click()
    expect(made.said).to_have_text("The same 120 tokens.", timeout=60_000)
    expect(made.said).to_have_attribute("data-tone", "same")
    first, second = requests(messages)
    assert ids_of(messages, first) == ids_of(messages, second)
    assert len(ids_of(messages, first)) == 120
    assert updated_of(messages, first) == updated_of(messages, second)
    assert len(updated_of(messages, first)) >= 1
    assert second["params"]["seed"] == 2**63 + 11
    expect(page.locator("#version")).to_have_text("2/2")
    assert play.text() == text
    expect(page.locator(".mark-change")).to_have_text("temperature 0.7 → 0.5")
    page.get_by_role("button", name="Previous version").click()
    expect(page.locator("#version")).to_have_text("1/2")
    assert play.text() == text


def test_json_that_ended_before_its_limit_is_not_brought_to_an_end_sooner(
    page: Page, bundled: Site, tmp_path: Path
) -> None:
    play = Playground(page, bundled).open()
    play.set(max_tokens=250, seed=1, temperature=1.0)
    free = {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]}
    AnswerOptions(play).format("JSON schema", json.dumps({**free, "additionalProperties": False}))
    play.ask(ASK)
    play.wait_tokens(1)
    play.wait_done()
    n = len(play.numbers())
    assert 12 < n < 200
    made = play.playback
    made.open(made.save(tmp_path / "note.json"))
    made.again.click()
    expect(made.said).to_have_text(f"The same {n} tokens.", timeout=60_000)


def test_json_that_was_stopped_is_not_brought_to_an_end(
    page: Page, bundled: Site, tmp_path: Path
) -> None:
    play = Playground(page, bundled).open()
    play.set(max_tokens=250, seed=1, temperature=1.0)
    texts = {"type": "array", "items": {"type": "string"}, "minItems": 12}
    AnswerOptions(play).format("JSON schema", json.dumps(texts))
    play.ask(ASK)
    play.wait_tokens(20)
    page.keyboard.press("Escape")
    play.wait_done()
    n = len(play.numbers())
    made = play.playback
    made.open(made.save(tmp_path / "stopped.json"))
    made.again.click()
    expect(made.said).to_have_text(f"The same {n} tokens.", timeout=60_000)


@pytest.mark.slow
def test_a_conversation_is_written_again_answer_by_answer(
    page: Page, bundled: Site, tmp_path: Path
) -> None:
    play = write(page, bundled.url, 40)
    play.set(max_tokens=20)
    play.continue_button.click()
    play.wait_tokens(60)
    play.wait_done()
    play.ask("And then?")
    expect(page.locator(".turn")).to_have_count(4)
    play.wait_tokens(1)
    page.keyboard.press("Escape")
    play.wait_done()
    n_last = len(play.numbers())
    made = play.playback
    made.open(made.save(tmp_path / "fox.json.gz", "Save, compressed"))
    made.again.click()
    expect(made.said).to_have_text(f"The same {n_last} tokens.", timeout=60_000)
    made.seek(5)
    expect(made.said).to_have_text("")
    made.again.click()
    expect(made.said).to_have_text("The same 60 tokens.", timeout=60_000)
    assert len(made.state()["turns"]) == 2
    assert "continued" in made.state()["turns"][1]


# ---- with the fake one -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved_story(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A replay of 60 tokens with a change, as an object."""
    site, page = fake_site(delay=DELAY), browser.new_page()
    play = write(page, site.url, 60, temperature=0.8)
    replay = playback.read(play.playback.save(tmp_path_factory.mktemp("rerun") / "story.json"))
    page.close()
    site.close()
    return replay


@pytest.fixture
def story(page: Page, site: Callable[..., Site], saved_story: dict[str, Any]) -> dict[str, Any]:
    """A copy of the replay; the page is open and ready."""
    Playground(page, site(delay=DELAY)).open()
    return copy.deepcopy(saved_story)


def test_what_parts_is_told_with_its_token(page: Page, story: dict[str, Any]) -> None:
    other = copy.deepcopy(story)
    tokens = playback.events(playback.segments(other)[0], "token")
    at = next(i for i, token in enumerate(tokens) if i > 15 and token["text"].strip().isalpha())
    written = tokens[at]["text"].strip()
    tokens[at].update(id=tokens[at]["id"] + 1, text=" zebra")
    made = Playground(page).playback.open_json(other)
    made.again.click()
    expect(made.said).to_have_text(
        f"The same {at} tokens, then “{written}” here and “zebra” in the file. "
        "Device and dtype are the same, so the weights or the program differ.",
        timeout=15_000,
    )
    expect(made.said).to_have_attribute("data-tone", "parted")


@pytest.mark.slow
def test_another_device_is_given_as_the_reason(page: Page, story: dict[str, Any]) -> None:
    made = Playground(page).playback
    other = copy.deepcopy(story)
    other["hello"]["device"]["name"] = "Another GPU"
    other["hello"]["model"]["dtype"] = "q4"
    made.open_json(other)
    made.again.click()
    expect(made.said).to_have_text(
        "The same 60 tokens. Here it is f16 on Fake device, in the file q4 on Another GPU.",
        timeout=15_000,
    )
    tokens = playback.events(playback.segments(other)[0], "token")
    tokens[0]["id"] += 1
    made.open_json(other)
    made.again.click()
    expect(made.said).to_contain_text("Different from the first token: ", timeout=15_000)
    expect(made.said).to_contain_text(": the two round differently.")


def test_another_model_cannot_write_it(page: Page, story: dict[str, Any]) -> None:
    story["hello"]["model"]["name"] = "elephant"
    made = Playground(page).playback.open_json(story)
    expect(made.again).to_be_disabled()
    expect(made.said).to_have_text("It was written by elephant; the engine here runs fake-story.")


def test_it_can_be_stopped_and_ends_with_its_replay(page: Page, story: dict[str, Any]) -> None:
    messages = MessageLog(page)
    page.reload()
    made = Playground(page).playback
    expect(page.locator("body")).to_have_attribute("data-engine", "ready")
    made.open_json(story)
    made.again.click()
    expect(made.said).to_have_text(re.compile(r"^[1-9]\d? tokens, all the same so far\.$"))
    expect(made.slider).to_be_disabled()
    page.keyboard.press("Escape")
    expect(made.said).to_have_text(re.compile(r"^Stopped after [1-9]\d? tokens?, all the same\.$"))
    expect(made.slider).to_be_enabled()
    made.again.click()
    expect(made.bar.get_by_role("button", name="Stop")).to_be_visible()
    made.leave.click()
    expect(page.get_by_test_id("connection")).to_have_text("Connected")
    first, second = requests(messages)
    ids = [first["id"], second["id"]]
    until(
        page,
        lambda: [message["id"] for message in messages.sent if message["type"] == "stop"] == ids,
        "both to be stopped",
    )
    expect(page.locator("body")).to_have_attribute("data-phase", "empty")


@pytest.mark.slow
def test_a_line_that_breaks_ends_it(
    page: Page, site: Callable[..., Site], story: dict[str, Any]
) -> None:
    play = Playground(page, site(delay=DELAY))
    play.route_sockets()
    play.open()
    made = play.playback.open_json(story)
    made.again.click()
    expect(made.said).to_contain_text("all the same so far")
    play.cut()
    expect(made.said).to_have_text(
        re.compile(r"^The connection to the engine was lost after \d+ tokens?\.$")
    )
    expect(made.said).to_have_attribute("data-tone", "bad")
    expect(made.slider).to_be_enabled()
    expect(made.again).to_be_enabled(timeout=15_000)


HOLD_FRAMES = """() => {
  const [draw, held] = [window.requestAnimationFrame, []];
  window.requestAnimationFrame = (draws) => held.push(draws);
  window.releaseFrames = () => {
    window.requestAnimationFrame = draw;
    for (const draws of held) draw(draws);
  };
}"""
"""Draws nothing until `releaseFrames`, as in a tab that is hidden."""


def test_a_line_that_is_renewed_in_a_hidden_tab_ends_it(
    page: Page, site: Callable[..., Site], story: dict[str, Any]
) -> None:
    play = Playground(page, site(delay=DELAY))
    play.route_sockets()
    play.open()
    made = play.playback.open_json(story)
    made.again.click()
    expect(made.said).to_contain_text("all the same so far")
    page.evaluate(HOLD_FRAMES)
    n_ready = len(ready_statuses(play.messages))
    play.cut()
    until(page, lambda: len(ready_statuses(play.messages)) > n_ready, "the engine again")
    page.evaluate("() => window.releaseFrames()")
    expect(made.said).to_have_text(re.compile("^The connection to the engine was lost after"))
    expect(made.again).to_be_enabled()


def ready_statuses(messages: MessageLog) -> list[dict[str, Any]]:
    return [m for m in messages.received if m["type"] == "status" and m["state"] == "ready"]


@pytest.mark.parametrize(
    ("room", "words", "tone"),
    [
        (30, re.compile("^The server refused it: .*the context holds 30"), "bad"),
        (
            60,
            re.compile(r"^The same 1\d tokens, then the context of this engine was full\.$"),
            "parted",
        ),
    ],
    ids=["prompt", "text"],
)
def test_a_context_that_is_too_small_is_said(
    page: Page,
    story: dict[str, Any],
    own_site: Callable[..., Site],
    room: int,
    words: re.Pattern[str],
    tone: str,
) -> None:
    play = Playground(page, own_site(context=room)).open()
    made = play.playback.open_json(story)
    made.again.click()
    expect(made.said).to_have_attribute("data-tone", tone, timeout=15_000)
    expect(made.said).to_have_text(words)


@pytest.mark.slow
def test_a_change_of_the_limit_is_written_again(
    page: Page, site: Callable[..., Site], tmp_path: Path
) -> None:
    """A run that was stopped past its first limit ends at the same token, by the raised limit."""
    play = Playground(page, site(delay=0.05)).open()
    messages = play.messages
    play.set(seed=4, max_tokens=60)
    play.ask(ASK)
    play.wait_tokens(5)
    play.set(max_tokens=200)
    play.wait_tokens(65)
    page.keyboard.press("Escape")
    play.wait_done()
    n = len(play.numbers())
    assert 65 <= n < 200
    made = play.playback
    made.open(made.save(tmp_path / "longer.json"))
    made.again.click()
    expect(made.said).to_have_text(f"The same {n} tokens.", timeout=15_000)
    _, second = requests(messages)
    assert second["params"]["max_tokens"] == 60
    (change,) = second["changes"]
    assert change["params"] == {"max_tokens": n}
