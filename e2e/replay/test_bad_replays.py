"""Replay files that are refused, and text in them that looks like HTML."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from e2e.playground import Playground
from e2e.replay import playback
from e2e.replay.conversation import ASKED, LAST
from e2e.replay.playback import Playback, as_file
from e2e.site import Site
from e2e.waiting import until

Path_ = tuple[str | int, ...]
TURN: Path_ = ("turns", 1, "answers", 0, "segments", 0)
EVENTS: Path_ = (*TURN, "events")
CONTINUED_BY: Path_ = (*TURN[:-1], 1, "events", 0, "event")


def changed(replay: dict[str, Any], path: Path_, value: object) -> dict[str, Any]:
    """A copy with the value at `path` replaced; ... takes it out."""
    made = copy.deepcopy(replay)
    place: Any = made
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return made


BAD_FIELDS: list[tuple[Path_, object, str]] = [
    (("format",), "another", "This is not a replay: it does not begin with"),
    (("version",), 4, "of version 4; this page reads versions 1 to 3"),
    (("version",), "1", "of version 1; this page reads versions 1 to 3"),
    (("version",), ..., "of version undefined"),
    (("hello",), ..., "replay.hello is missing, but must be an object"),
    (("hello", "model"), None, "replay.hello.model is null, but must be an object"),
    (("hello", "model", "n_layers"), 10**6, "n_layers is 1000000, but must be"),
    (("hello", "model", "n_heads"), -1, "n_heads is -1, but must be a whole number from 0"),
    (("hello", "limits", "context"), 1.5, "context is 1.5, but must be a whole number"),
    (("hello", "limits", "kv_blocks"), 10**15, "kv_blocks is 1000000000000000, but must be"),
    (("hello", "secret"), 1, 'replay.hello has the field "secret", which this version does not'),
    (("saved",), "yesterday", 'saved is "yesterday", but must be a date'),
    (("turns",), [], "replay.turns is a list of 0, but must be a list of 1"),
    (("turns",), {}, "replay.turns is an object, but must be a list"),
    (("turns", 0, "role"), "judge", 'role is "judge", but must be one of user, model'),
    (("turns", 0, "text"), 7, "replay.turns[0].text is 7, but must be a text"),
    (("turns", 1, "shown"), 2, "turns[1].shown is 2, but must be a whole number from 0 to 1"),
    ((*TURN, "request", "params", "seed"), 5, "seed is 5, but must be a text of 1 to 20 digits"),
    ((*TURN, "request", "params", "top_p"), 1.01, "top_p is 1.01, but must be a number"),
    ((*TURN, "events"), ..., "must have either events or a text"),
    ((*TURN, "text"), "and", "must have either events or a text"),
    ((*EVENTS, 0, "at"), -1, "events[0].at is -1, but must be a number, not negative"),
    ((*EVENTS, 0, "event", "prompt"), [], "prompt is a list of 0"),
    ((*EVENTS, 1, "event", "type"), "accepted", 'has the field "done", which this version'),
    ((*EVENTS, 1), {"at": 1, "event": {"type": "queued"}}, "event.position is missing, but"),
    ((*EVENTS, 1, "event", "type"), "hacked", "one of accepted, queued, prefill, preview, token"),
    ((*EVENTS, 1, "event", "stats", 0, "position"), 10**6, "stats.position is 1000000, but"),
    ((*EVENTS, 1, "event", "total"), 9999, "total is 9999, but must be"),
    ((*EVENTS, 3, "event", "index"), 7, "index is 7, but must be 1, its number"),
    ((*EVENTS, 3, "event", "logprob"), "NaN", 'logprob is "NaN", but must be a number'),
    ((*EVENTS, 3, "event", "draw"), True, "draw is true, but must be a number"),
    ((*EVENTS, 3, "event", "mass"), [1, 2], "mass is a list of 2, but must be a list of 4 to 4"),
    ((*EVENTS, 3, "event", "text"), ["x"], "text is a list of 1, but must be a text"),
    ((*EVENTS, 3, "event", "candidates", 0, "cut"), "<b>", 'cut is "<b>", but must be'),
    ((*EVENTS, 3, "event", "stats", "layers"), [], "layers is a list of 0"),
    ((*EVENTS, 3, "event", "stats", "layers", 0, "entropy"), [1.0], "entropy.length is 1, but"),
    ((*EVENTS, 3, "event", "times", "interval"), True, "interval is true, but must be a number"),
    ((*EVENTS, 3, "event", "innerHTML"), "<i>", 'has the field "innerHTML"'),
    ((*EVENTS, 3, "event", "__proto__"), {}, 'has the field "__proto__"'),
    ((*CONTINUED_BY, "texts"), ..., "texts.length is 0, but must be"),
]  # fmt: skip


# What is said of a replay, changed in one place after the other: [path, value], or [path] for
# nothing in that place.
REFUSED = """async ([text, changes]) => {
  const { open } = await import("/static/js/replay/file.js");
  const changed = ([path, ...value]) => {
    const replay = JSON.parse(text);
    const place = path.slice(0, -1).reduce((at, step) => at[step], replay);
    const own = { value: value[0], enumerable: true, configurable: true, writable: true };
    if (value.length) Object.defineProperty(place, path.at(-1), own);
    else delete place[path.at(-1)];
    return new File([JSON.stringify(replay)], "bad.json");
  };
  const messages = [];
  for (const change of changes)
    messages.push(await open(changed(change)).then(() => "opened", ({ message }) => message));
  return messages;
}"""


def test_bad_fields_are_refused_by_name(
    page: Page, site: Callable[..., Site], written: dict[str, Any]
) -> None:
    play = Playground(page, site()).open()
    play.set(max_tokens=5)
    play.ask("My own question")
    play.wait_tokens(5)
    play.wait_done()
    mine = play.text()
    changes = [[path] if value is ... else [path, value] for path, value, _ in BAD_FIELDS]
    messages = page.evaluate(REFUSED, [json.dumps(written["replay"]), changes])
    for (path, _, words), message in zip(BAD_FIELDS, messages, strict=True):
        assert words in message, path
    made = play.playback
    made.give(as_file(changed(written["replay"], *BAD_FIELDS[0][:2]), "bad.json"))
    expect(made.error).to_have_text(f"bad.json cannot be opened. {messages[0]}")
    expect(made.bar).to_be_hidden()
    page.keyboard.press("Escape")
    assert play.text() == mine
    expect(page.get_by_test_id("connection")).to_have_text("Connected")


HOLD = """() => {
  const allowed = new Promise((allow) => { globalThis.allow = allow });
  const Unheld = DecompressionStream;
  globalThis.isHeld = false;
  globalThis.DecompressionStream = function (format) {
    globalThis.DecompressionStream = Unheld;
    globalThis.isHeld = true;
    const transform = async (chunk, held) => { await allowed; held.enqueue(chunk) };
    const { writable, readable } = new Unheld(format);
    return { writable, readable: readable.pipeThrough(new TransformStream({ transform })) };
  };
}"""
"""Holds the next compressed file that is opened."""


def test_a_replay_that_was_read_late_takes_no_prompt_from_the_conversation(
    page: Page, site: Callable[..., Site], written: dict[str, Any]
) -> None:
    """The server may refuse a prompt, which is then taken back from what the page shows."""

    def on_socket(route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        route.on_message(lambda told: None if '"generate"' in str(told) else server.send(told))

    page.route_web_socket("**/ws", on_socket)
    play = Playground(page, site()).open()
    page.evaluate(HOLD)
    play.playback.give(written["packed"])
    until(page, lambda: page.evaluate("isHeld"), "the file that is read")
    page.keyboard.press("Escape")
    play.ask("My own question")
    expect(page.get_by_text("My own question")).to_be_visible()
    page.evaluate("allow()")
    expect(play.playback.error).to_contain_text("A prompt was just sent")
    expect(play.playback.bar).to_be_hidden()


BAD_FILES = [
    (b"", "it is not JSON"),
    (b"{", "it is not JSON"),
    (b"[]", "it does not begin with"),
    (b"null", "it does not begin with"),
    (b'"tokenglass replay"', "it does not begin with"),
    (b"\xff\xfe\x00", "it is not UTF-8 text"),
    (b"\x1f\x8b broken", "it is not a whole gzip file of UTF-8 text"),
    (gzip.compress(b"{" * 100)[:-9], "it is not a whole gzip file of UTF-8 text"),
    (gzip.compress(b"\xff\xff"), "it is not a whole gzip file of UTF-8 text"),
    (b"[" * 200_000, "it is not JSON"),
    (b'{"format":"tokenglass conversations","version":1}\n{}', "“Import” in the list"),
]


def test_bad_files_are_refused(page: Page, site: Callable[..., Site]) -> None:
    play = Playground(page, site()).open()
    made = play.playback
    bomb = (gzip.compress(b" " * (300 * 1024 * 1024), 1), "holds more than 256 MB")
    for n, (content, words) in enumerate([*BAD_FILES, bomb]):
        made.give(as_file(content, f"bad{n}.json"))
        expect(made.error).to_contain_text(f"bad{n}.json cannot be opened.", timeout=30_000)
        expect(made.error).to_contain_text(words)
    expect(made.bar).to_be_hidden()


def test_an_infinite_number_is_refused(
    page: Page, site: Callable[..., Site], written: dict[str, Any]
) -> None:
    play = Playground(page, site()).open()
    made = play.playback
    path: Path_ = (*EVENTS, 3, "event", "logprob")
    text = written["path"].read_text()
    value = str(playback.segments(written["replay"])[0]["events"][3]["event"]["logprob"])
    assert changed(written["replay"], path, 1)["turns"]
    made.give(as_file(text.replace(f'"logprob":{value}', '"logprob":1e999', 1)))
    expect(made.error).to_contain_text("logprob is null, but must be a number")


@pytest.mark.quick
def test_what_looks_like_html_is_text(alone: Playback, written: dict[str, Any]) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    replay = copy.deepcopy(written["replay"])
    replay["hello"]["model"]["name"] = replay["hello"]["device"]["name"] = evil
    replay["turns"][0]["text"] = replay["turns"][2]["text"] = evil
    for segment in playback.segments(replay):
        for token in playback.events(segment, "token"):
            token["text"] = evil
            for candidate in token["candidates"]:
                candidate["text"] = evil
        for token in playback.events(segment, "accepted")[0]["prompt"]:
            token["text"] = evil
    alone.open(as_file(replay, f"{evil}.json"))
    page = alone.page
    for n in (1, ASKED, LAST):
        alone.seek(n)
        alone.state()
    page.locator("#plot").focus()
    page.keyboard.press("ArrowLeft")
    page.evaluate("() => { location.hash = 'look=timeline' }")
    alone.state()
    assert page.locator(".said").first.text_content() == evil
    assert page.locator(":is(main, .playback, header, dialog) :is(img, script)").count() == 0
    assert page.title() != "owned"
