"""A conversation opened from its file: the same page as while it was written, without an engine."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.playground import Playground
from e2e.replay import playback
from e2e.replay.conversation import ASK, ASKED, CONTINUED, LAST, REGENERATED
from e2e.replay.playback import Playback
from e2e.site import Site
from e2e.waiting import until


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
