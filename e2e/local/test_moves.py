"""What is made on one side goes on on the other: branches, replays, conversations that were left;
and the side survives a reload."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from e2e import bundled
from e2e.bundled import engine_tokens
from e2e.chat.test_branch import look_at, versions
from e2e.local.place_dialog import MOVE_MS, PlaceDialog
from e2e.playground import Playground
from e2e.replay import playback
from e2e.site import Site
from gpu import SamplingParams, ScheduledUpdate

PROMPT = "Tell me a story about a fox"
N = 10
"""Tokens of each run."""


def branch_at(play: Playground, index: int) -> None:
    """Write the most likely candidate that was not drawn in the place of a token."""
    n = versions(play)
    look_at(play, index)
    play.page.locator(".cands li:not(.pick-row) button").first.click()
    expect(play.page.locator("#version")).to_have_text(f"{n + 1}/{n + 1}")
    play.wait_tokens(index + 1 + N)
    play.wait_done()


def go_on(play: Playground) -> None:
    n = play.tokens.count()
    play.continue_button.click()
    play.wait_tokens(n + N)
    play.wait_done()


def expect_same_when_run_again(play: Playground, path: Path, n: int) -> None:
    """The last answer of a replay of the other side plays, and is written again with the same ids,
    which the bar says beside both devices."""
    made = play.playback.open(path)
    made.seek(n - 2)
    made.play.click()
    made.expect_at(n)
    made.again.click()
    said = re.compile(r"^The same \d+ tokens\. Here it is f32 on .+, in the file f32 on .+\.$")
    expect(made.said).to_have_text(said, timeout=MOVE_MS)
    made.leave.click()
    play.wait_ready()


@pytest.mark.slow
def test_branches_and_replays_move_between_the_sides(
    moving: Playground, f32_server: Site, tmp_path: Path
) -> None:
    play, place, made = moving, PlaceDialog(moving), moving.playback
    play.set(temperature=0.8, max_tokens=N, seed=7)
    play.ask(PROMPT)
    play.wait_tokens(N)
    play.wait_done()
    branch_at(play, 4)
    n_of_server = 2 * N  # of both versions, without what they share
    by_server = made.save(tmp_path / "server.json")

    place.to_browser()
    go_on(play)
    expect_same_when_run_again(play, by_server, n_of_server)
    branch_at(play, 6)
    by_browser = made.save(tmp_path / "browser.json")

    place.to_server()
    go_on(play)
    expect_same_when_run_again(play, by_browser, n_of_server + 2 * N)
    whole = playback.read(made.save(tmp_path / "whole.json"))
    runs = [segment for segment in playback.segments(whole) if segment["events"]]
    assert len(runs) == 5
    for run in runs:
        assert written(run) == engine_written(f32_server, run)


def written(run: dict[str, Any]) -> list[int]:
    return [token["id"] for token in playback.events(run, "token")]


def engine_written(
    server: Site, run: dict[str, Any], updates: tuple[ScheduledUpdate, ...] = ()
) -> list[int]:
    """Return what the server's engine writes for the request of a run with these updates."""
    [accepted] = playback.events(run, "accepted")
    told = accepted["params"]  # its seed has 64 bits, so it is text
    told = {**told, "seed": int(told["seed"]), "stop": tuple(told["stop"])}
    params = SamplingParams(**told)
    ids = [token["id"] for token in accepted["prompt"]]
    return [token.id for token in engine_tokens(server, ids, params, updates)]


# ---- conversations that were left ------------------------------------------------------------


SLOWER = """() => {
  const { mapAsync } = GPUBuffer.prototype;
  GPUBuffer.prototype.mapAsync = async function (...range) {
    await new Promise((resolve) => setTimeout(resolve, 200));
    return mapAsync.apply(this, range);
  };
}"""
"""Lets the worker wait for every result, so that a short story is not over before a move."""


def leave_running(play: Playground, prompt: str) -> None:
    play.ask(prompt)
    play.wait_tokens(2)
    play.start_new()


def expect_stopped_and_going_on(play: Playground, title: str) -> None:
    """A conversation that was left before a move has its text, and goes on with it."""
    play.drawer.open(title)
    play.wait_done()
    expect(play.stats).to_contain_text("stopped")
    n = play.tokens.count()
    assert n >= 2
    play.set(max_tokens=4)
    play.continue_button.click()
    play.wait_tokens(n + 4)
    play.wait_done()
    play.start_new()


@pytest.mark.slow
def test_conversations_that_were_left_are_stopped_by_a_move_and_go_on_after_it(
    moving: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the browser and back, with one on the page and one that was left."""
    play, place = moving, PlaceDialog(moving)
    place.to_browser()  # from now on the export is there
    place.to_server()
    monkeypatch.setattr(bundled, "TOKEN_SECONDS", 0.2)
    play.set(temperature=0, max_tokens=120)
    leave_running(play, PROMPT)
    play.ask("Tell me of a hare")
    play.wait_tokens(2)
    place.to_browser()
    expect(play.stats).to_contain_text("stopped")
    expect_stopped_and_going_on(play, PROMPT)
    play.page.workers[0].evaluate(SLOWER)
    play.set(max_tokens=120)
    leave_running(play, "Tell me of a dog")
    place.to_server()
    expect_stopped_and_going_on(play, "Tell me of a dog")


# ---- a reload --------------------------------------------------------------------------------


def reload(play: Playground) -> None:
    play.page.reload()
    expect(play.page.locator("body")).to_have_attribute("data-engine", "ready", timeout=MOVE_MS)


def test_the_side_survives_a_reload_where_the_files_are_kept(
    moving: Playground, allowed_console: list[str]
) -> None:
    """Also while the server has the export no more. Without the files it is the server's turn."""
    play, page, place = moving, moving.page, PlaceDialog(moving)
    place.to_browser()
    play.set(temperature=0)
    play.write(PROMPT, N)
    text = play.text()
    page.route("**/api/local/*/*/*", lambda route: route.fulfill(status=400))
    allowed_console.append("Failed to load resource")
    reload(play)
    assert len(page.workers) == 1
    assert play.text() == text
    go_on(play)
    dialog = place.open()
    expect(dialog.get_by_role("button", name="It runs here")).to_be_disabled()
    expect(dialog.locator("#place-dtype")).to_have_value("f32")
    expect(dialog.locator("#place-server-facts")).to_contain_text("f32")
    dialog.get_by_text("Kept in this browser").click()
    dialog.locator("#kept-models li").get_by_role("button", name="Remove").click()
    expect(dialog.locator("#kept-sum")).to_have_text("nothing")

    reload(play)
    assert page.workers == []
    expect(play.notice).to_contain_text("The model runs on the server now")
    expect(play.notice).to_contain_text(
        "it ran in this browser, as f32, but its files are not kept"
    )
    go_on(play)
    reload(play)
    expect(play.notice).to_be_hidden()
