"""A conversation as a file: what is in it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.playground import Playground
from e2e.replay import playback
from e2e.replay.conversation import ASK, ASKED
from e2e.site import Site


@pytest.mark.quick
def test_the_file_holds_what_came_over_the_line(written: dict[str, Any]) -> None:
    replay, messages = written["replay"], written["messages"]
    hello = messages.last("hello")
    assert replay["format"] == "tokenglass replay"
    assert replay["version"] == 1
    assert replay["hello"] == hello
    asked = [message for message in messages.sent if message["type"] == "generate"]
    kept = playback.segments(replay)
    assert len(asked) == len(kept) == 4
    for segment, request in zip(kept, asked, strict=True):
        received = [
            m for m in messages.received if m["type"] == "event" and m["id"] == request["id"]
        ]
        seed = str(request["params"]["seed"])
        expected = copy.deepcopy([m["event"] for m in received])
        for event in expected:
            if "params" in event:
                event["params"]["seed"] = seed
        assert [each["event"] for each in segment["events"]] == expected
        assert [each["at"] for each in segment["events"]] == [m["at"] for m in received]
        assert segment["prepared"] == received[0]["prepared"]
        came = [each["came"] for each in segment["events"]]
        assert came == sorted(came)
        assert all(each["drawn"] >= each["came"] for each in segment["events"])
        assert segment["request"]["params"] == {**request["params"], "seed": seed}
        for name in ("messages", "ids", "written"):
            assert segment["request"].get(name) == request.get(name)
    assert ["ids" in segment["request"] for segment in kept] == [False, True, False, False]
    assert kept[0]["request"]["params"]["seed"] == "18446744073709551615"


def test_every_change_is_there_with_its_token(written: dict[str, Any]) -> None:
    (updated,) = playback.events(playback.segments(written["replay"])[0], "updated")
    assert 8 <= updated["index"] < ASKED
    assert updated["params"]["temperature"] == 1.4


def test_the_compressed_file_is_the_same_and_small(written: dict[str, Any]) -> None:
    plain, packed = (written[name].stat().st_size for name in ("path", "packed"))
    same = playback.read(written["packed"])
    assert {**same, "saved": ""} == {**written["replay"], "saved": ""}
    assert packed < plain / 2


def test_the_dialog_says_the_size(page: Page, site: Callable[..., Site]) -> None:
    play = Playground(page, site()).open()
    page.get_by_role("button", name="Replay: save or open").click()
    size = page.get_by_test_id("replay-size")
    expect(size).to_contain_text("Nothing has been written yet")
    expect(page.get_by_role("button", name="Save as plain JSON")).to_be_disabled()
    page.keyboard.press("Escape")
    play.set(max_tokens=6)
    play.ask(ASK)
    play.wait_tokens(6)
    play.wait_done()
    page.get_by_role("button", name="Replay: save or open").click()
    expect(size).to_contain_text("1 answer, 6 tokens: ")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as plain JSON").click()
    assert download.value.suggested_filename == "tokenglass-tell-me-a-story.json"
    n_bytes = Path(download.value.path()).stat().st_size
    expect(size).to_contain_text(
        f"{n_bytes / 1000:.0f}" if n_bytes >= 99_500 else f"{n_bytes / 1000:.1f}"
    )


def test_one_key_saves_and_another_opens(page: Page, site: Callable[..., Site]) -> None:
    # Playwright takes choosers over only some time after somebody first listens for one; until then
    # a browser without windows cancels them.
    page.on("filechooser", lambda _: None)
    play = Playground(page, site()).open()
    play.set(max_tokens=4)
    play.ask(ASK)
    play.wait_tokens(4)
    play.wait_done()
    page.locator("#turns").focus()
    with page.expect_download() as download:
        page.keyboard.press("s")
    assert download.value.suggested_filename.endswith(".json.gz")
    expect(page.locator("#live-status")).to_contain_text(
        "Saved as tokenglass-tell-me-a-story.json.gz"
    )
    with page.expect_file_chooser():
        page.keyboard.press("o")
