"""What an opened replay covers, and how it fits the page."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.look.test_looks import violations
from e2e.playground import Playground
from e2e.replay.conversation import REGENERATED
from e2e.replay.playback import as_file
from e2e.site import Site


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
