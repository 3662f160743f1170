"""Replay files that older pages saved open, play, and are written again with the same ids.

e2e/replay/saved/README.md says which page saved each file. They stand for the files that people
have kept, so they are never changed or saved anew.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.bundled import bundled_site
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.replay import playback
from e2e.replay.playback import Playback
from e2e.site import Site
from e2e.waiting import TWO_FRAMES

FOLDER = Path(__file__).parent / "saved"
ADAPTER = FOLDER / "tone"
"""The LoRA adapter that wrote part of v3.json."""
SHA256 = {
    "v1": "10b4eddfe6473c5d0732ffd8f45bf93663200b9ce3497e30ebc02f4b6ac9bb19",
    "v2": "1ba7a744c8300934282c896450442291c335f499e6fb3caf5ebb92528ce51678",
    "v3": "3e4c8d354d38d295f6a1954f9689982e86b1d419f6389f0d1e3599b890432cf9",
}
MARKS = {
    "v1": [["temperature 0.8 → 1.2", "continued"]],
    "v2": [
        ["MLP 1 × 0.5", "temperature 0.8 → 1.2", "head 2.3 off", "steer +0.5 at layer 3"],
        ["MLP 1 × 0.5, head 2.3 off and 2 more"],
        [
            "MLP 1 × 0.5, head 2.3 off and 2 more",
            "forced ‘he’, was ‘found’ (p 0.58)",
            "max tokens 12 → 8",
        ],
    ],
    "v3": [
        [
            "adapter tone × 0.5",
            "temperature 0.8 → 1.2",
            "adapter tone on",
            "continued",
            "attention 3 × 0.6",
        ],
        [
            "adapter tone × 0.5",
            "temperature 0.8 → 1.2",
            "forced ‘who’, was ‘?’ (p 1.00)",
            "max tokens 24 → 8, attention 3 × 0.6, adapter tone on",
        ],
    ],
}
"""The marks of changes in the text, in order: a list for each answer of a file."""
LAYERS = """() => [...document.querySelectorAll("#lrows tr:not(.end)")].map((row) =>
  [...row.querySelectorAll("td")].slice(0, 4).map((cell) =>
    Number(cell.innerText.replaceAll(",", ""))))"""
"""The rows of the layer panel, last layer first: what attention and MLP add beside the residual
norm, the entropy of the heads, and that norm."""
PLAY_MS = 10_000
"""More than a file takes at four times its speed."""
WRITE_MS = 60_000


@dataclass(frozen=True)
class Answer:
    """One version of a saved answer.

    `text`: what the page shows of it. `ids`: those of its own tokens, a list for each request.
    `last`: the number of its last token in the playback, counted from 1.
    """

    text: str
    ids: list[list[int]]
    last: int


@dataclass(frozen=True)
class Saved:
    """A saved file. `tokens`: the token events of all its answers, in the order of the playback."""

    name: str
    path: Path
    replay: dict[str, Any]
    tokens: list[dict[str, Any]]
    answers: list[Answer]


def saved_file(name: str) -> Saved:
    """Read e2e/replay/saved/NAME.json."""
    path = FOLDER / f"{name}.json"
    replay = playback.read(path)
    turn = replay["turns"][-1]
    tokens: list[dict[str, Any]] = []
    texts: list[list[str]] = []
    answers = []
    for answer in turn["answers"]:
        pieces: list[str] = []
        if branch := answer["segments"][0].get("branch"):
            pieces += texts[branch["of"]][: branch["at"]]
            pieces += [put["text"] for put in branch["put"]]
        written = [playback.events(segment, "token") for segment in answer["segments"]]
        own = [token for events in written for token in events]
        pieces += [token["text"] for token in own]
        texts.append(pieces)
        tokens += own
        ids = [[token["id"] for token in events] for events in written]
        answers.append(Answer(turn["given"] + "".join(pieces), ids, len(tokens)))
    return Saved(name, path, replay, tokens, answers)


NEWEST = pytest.mark.parametrize(
    "saved",
    [pytest.param("v1", marks=pytest.mark.slow), pytest.param("v2", marks=pytest.mark.slow), "v3"],
    indirect=True,
)
"""Of a test that takes long. Files of all versions are played to their end in each run."""


@pytest.fixture(params=["v1", "v2", "v3"])
def saved(request: pytest.FixtureRequest) -> Saved:
    return saved_file(request.param)


@pytest.fixture
def opened(page: Page, site: Callable[..., Site], saved: Saved) -> Playback:
    """The file on a page that has no engine, shown at its last token."""
    page.route_web_socket("**/ws", lambda route: route.close())
    page.goto(site().url)
    return Playground(page).playback.open(saved.path)


@pytest.fixture(scope="module")
def engine() -> Iterator[Site]:
    """The bundled model and the adapter, which is off unless a request turns it on."""
    with bundled_site(loras={"tone": ADAPTER}) as site:
        yield site


@pytest.mark.quick
def test_the_file_is_as_the_old_page_saved_it(saved: Saved) -> None:
    """A renaming of the code must not rewrite the files that it is tested with."""
    assert hashlib.sha256(saved.path.read_bytes()).hexdigest() == SHA256[saved.name]
    assert saved.replay["version"] == int(saved.name.removeprefix("v"))


def test_a_branch_without_its_texts_is_refused(page: Page, site: Callable[..., Site]) -> None:
    """Its first tokens were given to the run: without their texts there is no answer to play."""
    replay = saved_file("v3").replay
    branches = [
        segment
        for answer in replay["turns"][-1]["answers"]
        for segment in answer["segments"]
        if "branch" in segment
    ]
    del branches[0]["events"][0]["event"]["texts"]
    playing = Playback(Playground(page, site()).open().page)
    playing.give(playback.as_file(replay))
    expect(playing.error).to_contain_text("event.texts.length is 0, but must be")


def test_every_answer_stands_there_with_its_changes(opened: Playback, saved: Saved) -> None:
    play = Playground(opened.page)
    shown = []
    for answer in saved.answers:
        opened.seek(answer.last)
        opened.page.evaluate(TWO_FRAMES)
        assert play.text() == answer.text
        shown.append(play.answer.locator(".mark-change").all_inner_texts())
    assert shown == MARKS[saved.name]


@NEWEST
def test_every_token_has_its_candidates_its_draw_and_its_layers(
    opened: Playback, saved: Saved
) -> None:
    rows = opened.page.get_by_test_id("candidates").locator("li .w")
    for n, token in enumerate(saved.tokens, start=1):
        opened.seek(n)
        shown = opened.state()
        words = [label(each["text"]) for each in token["candidates"]]
        *most, last = rows.all_text_contents()
        assert len(most) >= 2
        assert most == words[: len(most)]
        assert last in (words[len(most)], label(token["text"])), "the drawn token is always listed"
        assert f"draw {token['draw']:.3f}" in shown["draw"]
        assert shown["kv"].startswith(f"{token['kv_blocks']} of ")
        layers = opened.page.evaluate(LAYERS)
        assert len(layers) == len(token["stats"]["layers"])
        for cells, layer in zip(reversed(layers), token["stats"]["layers"], strict=True):
            norm = layer["residual"]
            assert cells[0] == pytest.approx(layer["attention"] / norm, abs=0.006)
            assert cells[1] == pytest.approx(layer["mlp"] / norm, abs=0.006)
            assert cells[3] == pytest.approx(norm, rel=0.05)


@NEWEST
def test_the_instruments_that_need_no_engine_show_it(opened: Playback) -> None:
    for name in ("timeline", "reach", "branches", "cache"):
        look = Playground(opened.page).look.open(name)
        expect(look.message).to_have_text("")
        assert look.table(), f"{name} has no rows"


@pytest.mark.usefixtures("context")  # whose clock the test sets
def test_it_plays_to_its_end(opened: Playback, saved: Saved) -> None:
    page = opened.page
    at_its_end = opened.state()
    page.clock.install()
    page.clock.pause_at(page.evaluate("() => Date.now() + 1000"))
    opened.seek(0)
    page.get_by_text("4×", exact=True).click()
    opened.play.click()
    page.clock.run_for(PLAY_MS)
    opened.expect_at(len(saved.tokens))
    page.clock.resume()
    assert opened.state() == at_its_end


@NEWEST
def test_the_engine_writes_the_same_ids_again(page: Page, engine: Site, saved: Saved) -> None:
    play = Playground(page, engine).open()
    wire = play.messages
    made = play.playback.open(saved.path)
    for answer in saved.answers:
        made.seek(answer.last)
        expect(made.said).to_have_text("")
        made.again.click()
        n = sum(map(len, answer.ids))
        expect(made.said).to_have_text(re.compile(rf"^The same {n} tokens\."), timeout=WRITE_MS)
    requests = [message["id"] for message in wire.sent if message["type"] == "generate"]
    written = [ids_of(wire, id) for id in requests]
    assert written == [ids for answer in saved.answers for ids in answer.ids]


def label(text: str) -> str:
    """The text of a token as the list of candidates shows it."""
    shown = text.removeprefix(" ") if text.strip() else text
    shown = shown.replace("\n", "↵")
    return shown if shown.strip() else "␣" * len(shown)


def ids_of(wire: MessageLog, request: str) -> list[int]:
    """The ids of the tokens that a request wrote."""
    received = [m["event"] for m in wire.received if m["type"] == "event" and m["id"] == request]
    return [event["id"] for event in received if event["type"] == "token"]
