"""A conversation as a file: what is in it, and the same page from it without an engine."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.look.test_looks import violations
from e2e.playground import Playground
from e2e.replay import playback
from e2e.replay.playback import Playback, as_file
from e2e.site import Site, fake_site
from e2e.waiting import until

ASK = "Tell me a story"
# Tokens of the generations that `written` has: an answer, its continuation, another version, and
# the answer of the next turn. Numbers of the last token of each in the playback.
ASKED, CONTINUED, REGENERATED, LAST = 60, 90, 120, 132


@pytest.fixture(scope="module")
def written(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, _sites: dict[Any, Site]
) -> Iterator[dict[str, Any]]:
    """A conversation that had it all: a change while writing, a continuation, another version, a
    second turn. {path, packed, replay, wire}"""
    page = browser.new_page()
    here = _sites.setdefault(
        (("delay", 0.05),), _sites.get((("delay", 0.05),)) or fake_site(delay=0.05)
    )
    play = Playground(page, here).open()
    messages = play.messages
    play.set(seed="18446744073709551615", max_tokens=60, temperature=0.8)
    play.ask(ASK)
    play.wait_tokens(8)
    play.slide("temperature", 1.4)
    play.wait_done()
    play.set(max_tokens=30)
    play.continue_button.click()
    play.wait_tokens(CONTINUED)
    play.wait_done()
    play.regenerate.click()
    expect(page.locator("#version")).to_have_text("2/2")
    play.wait_tokens(30)
    play.wait_done()
    play.set(max_tokens=12)
    page.get_by_role("switch").click()
    play.ask("<b>And</b> then?")
    play.wait_tokens(12)
    play.wait_done()
    folder = tmp_path_factory.mktemp("replay")
    made = play.playback
    path = made.save(folder / "story.json")
    packed = made.save(folder / "story.json.gz", "Save, compressed")
    yield {
        "path": path,
        "packed": packed,
        "replay": playback.read(path),
        "messages": messages,
        "url": here.url,
    }
    page.close()


@pytest.fixture
def alone(page: Page, site: Callable[..., Site]) -> Playback:
    """A fresh page that finds no server behind its WebSocket."""
    page.route_web_socket("**/ws", lambda route: route.close())
    page.goto(site().url)
    expect(page.get_by_test_id("notice")).to_contain_text("cannot be reached")
    return Playground(page).playback


# ---- the file --------------------------------------------------------------------------------


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


# ---- opening ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["path", "packed"])
def test_it_opens_without_engine_and_server(
    alone: Playback, written: dict[str, Any], name: str
) -> None:
    alone.open(written[name])
    page = alone.page
    expect(page.get_by_test_id("connection")).to_have_text("Replay")
    expect(page.get_by_test_id("notice")).to_be_hidden()
    shown = alone.state()
    first, second, third, fourth = playback.segments(written["replay"])
    texts = [
        "".join(t["text"] for t in playback.events(s, "token"))
        for s in (first, second, third, fourth)
    ]
    assert shown["turns"] == [ASK, texts[2], "<b>And</b> then?", texts[3]]
    assert page.locator("#version").inner_text() == ""
    assert shown["candidates"][0].startswith(
        playback.events(fourth, "token")[-1]["candidates"][0]["text"].strip()
    )
    expect(alone.number).to_have_text(f"{LAST} / {LAST}")
    expect(page.locator("#model-name")).to_have_text("fake-story · f16")


def test_nothing_of_it_stays_when_it_is_left(alone: Playback, written: dict[str, Any]) -> None:
    page = alone.page
    names = ("#model-name", "#device-name", "#r-mem", "#r-kv", "#r-speed", "#tok-word", "#log")
    before = [page.locator(name).text_content() for name in names]
    alone.open(written["path"])
    alone.seek(40)
    alone.leave.click()
    expect(page.get_by_test_id("connection")).to_have_text("Not connected")
    expect(page.locator("body")).to_have_attribute("data-phase", "empty")
    assert [page.locator(name).text_content() for name in names] == before
    assert page.title() == "Tokenglass"


def test_what_needs_an_engine_rests_and_says_why(alone: Playback, written: dict[str, Any]) -> None:
    alone.open(written["path"])
    page = alone.page
    for name in ("Stop", "Regenerate", "Continue", "New"):
        button = page.locator("#meta").get_by_role("button", name=name, exact=True)
        expect(button).to_be_disabled()
        expect(button).to_have_attribute(
            "title", "Not available in a replay. Leave the replay to continue writing."
        )
    for control in page.locator(".sampling").locator("input, button").all():
        expect(control).to_be_disabled()
    expect(page.locator("#capture")).to_be_disabled()
    expect(page.locator("#prompt")).to_be_hidden()
    expect(page.locator("#sampling-hint-text")).to_have_text("The settings at this token")
    expect(alone.again).to_be_disabled()
    expect(alone.said).to_have_text("This page needs its engine to write the answer again.")
    page.evaluate("() => { location.hash = 'look=attention' }")
    expect(page.locator("#look-message")).to_contain_text("a replay has none")


@pytest.mark.quick
def test_every_position_is_the_page_as_it_was(alone: Playback, written: dict[str, Any]) -> None:
    alone.open(written["path"])
    first, second, third, _ = playback.segments(written["replay"])
    (updated,) = playback.events(first, "updated")
    tokens = playback.events(first, "token")
    for n in (1, 7, updated["index"] + 3, ASKED):
        alone.seek(n)
        shown, token = alone.state(), tokens[n - 1]
        text = "".join(t["text"] for t in tokens[:n])
        marked = "temperature 0.8 → 1.4" if n > updated["index"] else ""
        assert shown["turns"][0] == ASK
        assert len(shown["turns"][1]) == len(text) + len(marked)
        assert shown["turns"][1].replace(marked, "") == text
        assert shown["token"] == str(n)
        assert f"token {n}, " in shown["core"]
        assert f"draw {token['draw']:.3f}" in shown["draw"]
        assert shown["kv"].startswith(f"{token['kv_blocks']} of ")
        residual = token["stats"]["layers"][7]["residual"]
        assert f"{residual:.1f}" in shown["layers"]
    alone.seek(1)
    assert alone.state()["temperature"] == "0.80"
    alone.seek(ASKED)
    assert alone.state()["temperature"] == "1.40"
    assert "max tokens reached" in alone.state()["stats"]
    alone.seek(ASKED + 1)
    assert alone.state()["turns"][1].endswith(
        "continued" + playback.events(second, "token")[0]["text"]
    )
    alone.seek(CONTINUED + 1)
    expect(alone.page.locator("#version")).to_have_text("2/2")
    assert alone.state()["turns"] == [ASK, playback.events(third, "token")[0]["text"]]
    alone.seek(REGENERATED + 1)
    assert alone.state()["capture"] is False
    assert len(alone.state()["turns"]) == 4


def test_an_older_file_whose_continue_read_the_text_anew_opens(
    alone: Playback, written: dict[str, Any]
) -> None:
    old = copy.deepcopy(written["replay"])
    first, second = playback.segments(old)[:2]
    text = "".join(token["text"] for token in playback.events(first, "token"))
    request = second["request"]
    del request["ids"], request["written"]
    said = {"role": "assistant", "content": text}
    request |= {"messages": [*first["request"]["messages"], said], "continue_final": True}
    second["events"][0]["event"]["texts"] = []
    alone.open_json(old)
    for n in (CONTINUED, ASKED, ASKED + 1):
        alone.seek(n)
        shown = alone.state()
        rest = [token["text"] for token in playback.events(second, "token")[: n - ASKED]]
        assert shown["turns"][1].endswith("".join(["continued", *rest] if rest else [text[-5:]]))
        assert shown["token"] == str(n)


@pytest.mark.slow
def test_back_and_forth_is_the_same(alone: Playback, written: dict[str, Any]) -> None:
    alone.open(written["path"])
    seen = {}
    for n in (0, 5, 59, 60, 61, 90, 91, 120, 121, 132):
        alone.seek(n)
        seen[n] = alone.state()
    assert len({str(state) for state in seen.values()}) == len(seen)
    for n in (121, 5, 132, 60, 0, 91, 59, 90, 61, 120):
        alone.seek(n)
        assert alone.state() == seen[n], f"at {n}"


# The pixels of the first token's column, by way of a canvas that is made to be read.
FIRST_COLUMN = """() => {
    const [nPrompt, sample] = [17, document.querySelector("#sample")];
    const copy = new OffscreenCanvas(4, 300).getContext("2d", { willReadFrequently: true });
    copy.drawImage(sample, nPrompt * 3 + 11, 60, 4, 300, 0, 0, 4, 300);
    return [...copy.getImageData(0, 0, 4, 300).data];
}"""


def test_columns_keep_their_colours_while_it_is_scrubbed(
    alone: Playback, written: dict[str, Any]
) -> None:
    alone.open(written["path"])
    page = alone.page
    page.get_by_text("Residual norm").click()
    seen = []
    for n in (120, 92, 105, 91):
        alone.seek(n)
        alone.state()
        seen.append(page.evaluate(FIRST_COLUMN))
    assert len(set(map(str, seen))) == 1
    assert len(set(seen[0])) > 5, "there is nothing in this column"


@pytest.mark.usefixtures("context")  # whose clock the test sets
def test_it_plays_at_its_recorded_times(alone: Playback, written: dict[str, Any]) -> None:
    page = alone.page
    alone.open(written["path"])
    page.clock.install()
    page.clock.pause_at(page.evaluate("() => Date.now() + 1000"))
    first = playback.segments(written["replay"])[0]["events"]
    times = [each["at"] for each in first if each["event"]["type"] == "token"]
    for speed, factor in (("1×", 1.0), ("4×", 4.0), ("¼×", 0.25)):
        alone.seek(0)
        page.get_by_text(speed, exact=True).click()
        alone.play.click()
        half = times[30] + 1
        page.clock.run_for(half / factor)
        pause = alone.bar.get_by_role("button", name="Pause")
        pause.click()
        page.clock.run_for(50)
        shown = int(alone.slider.input_value())
        frames = 40 * factor  # a frame before and one after
        least = sum(at <= half - frames for at in times)
        most = sum(at <= half + frames for at in times)
        assert least <= shown <= most, f"{shown} tokens at {half:.0f} ms, {speed}"
        page.clock.run_for(2000)
        assert int(alone.slider.input_value()) == shown, "a paused playback goes on"
    page.get_by_text("4×", exact=True).click()
    alone.play.click()
    page.clock.run_for(60_000)
    alone.expect_at(LAST)
    expect(alone.play).to_be_visible()


def test_all_of_it_by_keyboard(alone: Playback, written: dict[str, Any]) -> None:
    alone.open(written["path"])
    page = alone.page
    expect(alone.slider).to_be_focused()
    expect(alone.slider).to_have_attribute(
        "aria-valuetext", f"token {LAST} of {LAST}: “" + word(written, 3, 11) + "”"
    )
    page.keyboard.press("Home")
    alone.expect_at(0)
    page.keyboard.press("ArrowRight")
    alone.expect_at(1)
    expect(alone.slider).to_have_attribute(
        "aria-valuetext", f"token 1 of {LAST}: “" + word(written, 0, 0) + "”"
    )
    page.keyboard.press("Space")
    expect(alone.bar.get_by_role("button", name="Pause")).to_be_visible()
    until(page, lambda: int(alone.slider.input_value()) > 4, "a playing playback")
    page.keyboard.press("Space")
    expect(alone.play).to_be_visible()
    at = int(alone.slider.input_value())
    page.keyboard.press("Shift+Tab")
    expect(alone.bar.get_by_role("button", name="Next token of the replay")).to_be_focused()
    page.keyboard.press("Enter")
    alone.expect_at(at + 1)
    page.keyboard.press("Space")  # on a button it is the button's
    alone.expect_at(at + 2)
    alone.slider.focus()
    page.keyboard.press("End")
    alone.expect_at(LAST)
    alone.leave.focus()
    page.keyboard.press("Enter")
    expect(alone.bar).to_be_hidden()
    expect(page.get_by_role("button", name="Replay: save or open")).to_be_focused()


def word(written: dict[str, Any], segment: int, index: int) -> str:
    token = playback.events(playback.segments(written["replay"])[segment], "token")[index]
    text: str = token["text"]
    return text.strip() or "␣"


def test_a_file_dropped_on_the_page_opens(
    page: Page, site: Callable[..., Site], written: dict[str, Any]
) -> None:
    play = Playground(page, site()).open()
    made = play.playback
    transfer = page.evaluate_handle(
        """(text) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([text], "dropped.json"));
            return transfer;
        }""",
        written["path"].read_text(),
    )
    page.dispatch_event("body", "dragover", {"dataTransfer": transfer})
    expect(page.locator("body")).to_have_attribute("data-drop", "")
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})
    expect(made.bar).to_be_visible()
    expect(page.locator("#playback-name")).to_have_text("dropped.json")
    expect(page.locator("body")).not_to_have_attribute("data-drop", "")


@pytest.mark.slow
def test_a_branch_is_kept_and_plays(page: Page, site: Callable[..., Site], tmp_path: Path) -> None:
    play = Playground(page, site()).open()
    play.set(seed=11, max_tokens=20)
    play.ask(ASK)
    play.wait_tokens(20)
    play.wait_done()
    play.core.focus()
    for key in ["Home", *["ArrowRight"] * 5]:
        page.keyboard.press(key)
    page.locator(".cands li:not(.pick-row) button").nth(1).click()
    expect(page.locator("#version")).to_have_text("2/2")
    play.wait_tokens(26)
    play.wait_done()
    made = play.playback
    page.keyboard.press("End")
    whole = made.state()
    path = made.save(tmp_path / "branch.json")
    first, branch = playback.segments(playback.read(path))
    assert (branch["branch"]["of"], branch["branch"]["at"]) == (0, 5)
    assert branch["request"]["params"]["first_index"] == 6
    prompt = playback.events(branch, "accepted")[0]["prompt"]
    forced = [each["id"] for each in branch["branch"]["put"]]
    lead = [token["id"] for token in playback.events(first, "token")[:5]]
    assert [each["id"] for each in prompt[-6:]] == lead + forced
    page.get_by_role("button", name="New", exact=True).click()
    made.open(path)
    assert words(made.state()) == words(whole)
    made.seek(20)
    alone_first = made.state()
    assert alone_first["turns"][1] == "".join(t["text"] for t in playback.events(first, "token"))
    made.seek(40)
    assert words(made.state()) == words(whole)
    made.seek(20)
    assert made.state() == alone_first
    made.seek(40)
    made.again.click()
    expect(made.said).to_have_text("The same 20 tokens.", timeout=15_000)


def words(state: dict[str, Any]) -> dict[str, Any]:
    """The parts of a state that do not depend on times or on the window's height."""
    names = ("turns", "token", "draw", "layers", "core")
    return {"candidates": state["candidates"][:6], **{name: state[name] for name in names}}


# ---- what it covers --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_conversation_goes_on_underneath_and_comes_back_whole(
    page: Page, own_site: Callable[..., Site], written: dict[str, Any]
) -> None:
    here = own_site(delay=0.03)
    play = Playground(page, here).open()
    play.set(seed=5, max_tokens=80, temperature=0.9)
    play.ask("My own question")
    play.wait_tokens(10)
    made = play.playback.open(written["path"])
    made.seek(20)
    assert "My own question" not in str(made.state()["turns"])
    page.keyboard.press("Escape")  # stops nothing that is not on show
    page.wait_for_timeout(600)
    made.leave.click()
    expect(page.get_by_test_id("connection")).to_have_text("Connected")
    play.wait_tokens(80)
    play.wait_done()
    params = page.evaluate("() => JSON.parse(localStorage['tokenglass.settings']).settings")
    own = {**params, "seed": 5, "stop": tuple(params["stop"])}
    assert own["temperature"] == 0.9
    assert play.text() == "".join(t.text for t in here.reference("My own question", **own))
    assert play.numbers() == list(range(80))
    expect(page.locator("#seed")).to_have_value("5")
    expect(page.locator("#n-temperature")).to_have_value("0.90")
    expect(page.locator("#n-temperature")).to_be_enabled()
    play.set(max_tokens=5)
    play.ask("Another")
    play.wait_tokens(5)
    play.wait_done()
    assert len(made.state()["turns"]) == 4


def test_a_reload_during_a_replay_brings_the_conversation(
    page: Page, own_site: Callable[..., Site], written: dict[str, Any]
) -> None:
    play = Playground(page, own_site()).open()
    play.set(max_tokens=9)
    play.ask("My own question")
    play.wait_tokens(9)
    play.wait_done()
    mine = play.text()
    play.playback.open(written["path"]).seek(40)
    page.reload()
    play.wait_ready()
    play.wait_tokens(9)
    assert play.text() == mine
    expect(page.locator(".said")).to_have_text("My own question")


def test_a_second_file_takes_the_place_of_the_first(
    page: Page, site: Callable[..., Site], written: dict[str, Any]
) -> None:
    play = Playground(page, site()).open()
    made = play.playback.open(written["path"])
    made.play.click()
    short = copy.deepcopy(written["replay"])
    short["turns"] = short["turns"][:2]
    made.give(as_file(short, "short.json"))
    expect(page.locator("#playback-name")).to_have_text("short.json")
    expect(made.number).to_have_text(f"{REGENERATED} / {REGENERATED}")
    expect(made.play).to_be_visible()
    made.leave.click()
    expect(page.locator("body")).to_have_attribute("data-phase", "empty")


# ---- bad files -------------------------------------------------------------------------------

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
    (("format",), "another", "This is no replay: it does not begin with"),
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


@pytest.mark.parametrize(
    ("theme", "size"),
    [
        ("dark", (360, 740)),
        pytest.param("light", (360, 740), marks=pytest.mark.slow),
        pytest.param("light", (1440, 900), marks=pytest.mark.slow),
        pytest.param("dark", (1440, 900), marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_in_a_replay(
    page: Page,
    site: Callable[..., Site],
    written: dict[str, Any],
    theme: Any,
    size: tuple[int, int],
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=theme)
    play = Playground(page, site()).open()
    page.get_by_role("button", name="Replay: save or open").click()
    found = {"dialog": violations(page)}
    made = play.playback
    made.give(as_file("{}", "bad.json"))
    expect(made.error).to_be_visible()
    found["error"] = violations(page)
    made.open(written["path"])
    found["end"] = violations(page)
    made.seek(30)
    made.again.click()
    expect(made.said).to_contain_text("all the same so far")
    found["again"] = violations(page)
    assert {state: v for state, v in found.items() if v} == {}


def test_nothing_moves_by_itself(
    page: Page, site: Callable[..., Site], written: dict[str, Any]
) -> None:
    page.emulate_media(reduced_motion="reduce")
    play = Playground(page, site()).open()
    made = play.playback.open(written["path"])
    before = made.state()
    page.wait_for_timeout(500)
    assert made.state() == before
    made.seek(40)
    moving = "() => document.getAnimations().filter((a) => a.playState === 'running').length"
    assert page.evaluate(moving) == 0


# ---- narrow windows --------------------------------------------------------------------------


@pytest.mark.parametrize("width", [360, 390, 768, 1100])
def test_it_fits_narrow_windows(
    page: Page, site: Callable[..., Site], written: dict[str, Any], width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    play = Playground(page, site()).open()
    assert play.overflow() <= 0
    header = page.locator("header.top").bounding_box()
    made = play.playback.open(written["path"])
    made.seek(75)
    assert play.overflow() <= 0
    for control in made.bar.locator("button, input").all():
        box = control.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width + 0.5
        assert box["y"] + box["height"] <= 740
    if width < 768:
        assert header is not None
        assert header["height"] < 60, "the header takes two lines"
        for control in made.bar.get_by_role("button").all():
            box = control.bounding_box()
            assert box is not None
            assert box["height"] >= 40
    expect(page.locator(".tok.on").last).to_be_in_viewport()
