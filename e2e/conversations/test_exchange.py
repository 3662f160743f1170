"""Conversations as files: one as a replay, all as one file, and back in another browser."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from e2e.playground import Playground
from e2e.replay import playback
from e2e.replay.playback import as_file
from e2e.site import Site


@pytest.fixture
def other(
    browser: Browser, page: Page, site: Callable[..., Site], browser_context_args: dict[str, Any]
) -> Iterator[Playground]:
    """The page in another browser, which has no conversations."""
    context = browser.new_context(**browser_context_args)
    yield Playground(context.new_page(), site()).open()
    context.close()


def saved(button: Locator, folder: Path) -> Path:
    """Press a button that saves a file, and return the file."""
    with button.page.expect_download() as download:
        button.click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_all_conversations_go_to_another_browser_in_one_file(
    play: Callable[..., Playground], other: Playground, tmp_path: Path
) -> None:
    here = play()
    here.write("One", 6)
    here.start_new()
    here.write("Two", 5)
    before = here.playback.state()
    here.drawer.wait_stored(2)
    here.drawer.show().act("Rename", "One").click()
    here.page.keyboard.type("First")
    here.page.keyboard.press("Enter")
    expect(here.drawer.titles).to_have_text(["Two", "First"])
    path = saved(here.drawer.save_all, tmp_path)
    assert path.name.endswith(".jsonl.gz")
    header, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert json.loads(header)["format"] == "tokenglass conversations"
    assert [json.loads(line).get("title") for line in lines] == [None, "First"]

    drawer = other.drawer.show()
    drawer.import_files(path)
    expect(drawer.said).to_have_text("Added 2 conversations.")
    assert set(drawer.titles.all_inner_texts()) == {"Two", "First"}
    drawer.import_files(path)
    expect(drawer.said).to_have_text("Added 0 conversations, 2 already here.")
    drawer.open("Two")
    after = other.playback.state()
    for name in ("turns", "stats", "candidates", "layers"):
        assert after[name] == before[name], name
    other.write("Go on", 4)
    assert len(drawer.wait_stored(2)) == 2


def test_one_conversation_is_saved_as_a_replay(
    play: Callable[..., Playground], other: Playground, tmp_path: Path
) -> None:
    here = play()
    here.write("One", 6)
    here.drawer.wait_stored(1)
    path = saved(here.drawer.show().act("Save", "One"), tmp_path)
    assert path.name == "tokenglass-one.json.gz"
    replay = playback.read(path)
    assert replay["version"] == 1
    assert len(playback.events(playback.segments(replay)[0], "token")) == 6
    other.playback.open(path).expect_at(6)
    drawer = other.drawer.show()
    drawer.import_files(path)
    expect(drawer.said).to_have_text("Added 1 conversation.")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\x00\xff", "It is not text"),
        ("", "it is not JSON"),
        ("{}", "This is not a replay"),
        ('{"format": "tokenglass replay", "version": 1, "turns": []}', "replay.saved is missing"),
        ('{"format": "tokenglass conversations", "version": 9}\n', "version 9"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_a_reason(
    play: Callable[..., Playground], content: Any, said: str
) -> None:
    here = play()
    drawer = here.drawer.show()
    drawer.import_files(as_file(content, "some.json"))
    expect(drawer.error).to_contain_text("some.json cannot be read.")
    expect(drawer.error).to_contain_text(said)
    assert drawer.entries() == []


def test_what_can_be_read_of_a_damaged_file_is_added(
    play: Callable[..., Playground], tmp_path: Path
) -> None:
    here = play()
    here.write("One", 4)
    here.drawer.wait_stored(1)
    here.drawer.show()
    path = saved(here.drawer.save_all, tmp_path)
    header, line = gzip.decompress(path.read_bytes()).decode().splitlines()
    here.drawer.act("Delete", "One").click()
    here.drawer.import_files(as_file("\n".join([header, line[:-9], "", line]), "damaged.jsonl"))
    expect(here.drawer.said).to_contain_text(
        "Added 1 conversation, 1 unreadable: damaged.jsonl, line 2"
    )
    expect(here.drawer.titles).to_have_text(["One"])


def test_a_long_line_is_searched_once(play: Callable[..., Playground]) -> None:
    """A small compressed file may hold a line of 256 MB, and must not freeze the page."""
    here = play()
    here.page.evaluate("""() => {
        window.nSearched = 0;
        const split = String.prototype.split;
        String.prototype.split = function (...args) {
            window.nSearched += this.length;
            return split.apply(this, args);
        };
    }""")
    n = 8 << 20
    drawer = here.drawer.show()
    drawer.import_files(as_file(gzip.compress(b'{"format":"' + b"a" * n + b'"}'), "long.jsonl.gz"))
    expect(drawer.error).to_contain_text("This is not a replay")
    assert n <= here.page.evaluate("window.nSearched") < 2 * n
