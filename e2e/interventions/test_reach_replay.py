"""Interventions are saved in replay files, and act again when such a file is rerun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from e2e.interventions.reach import ReachPanel
from e2e.playground import Playground
from e2e.replay import playback
from e2e.site import Site
from e2e.waiting import until

N = 60
BEGAN_WITH = {"mlp": [{"layer": 1, "factor": 0.5}]}
HEAD_OFF = {"heads": [{"layer": 2, "head": 3, "factor": 0}]}


def reached(page: Page, here: Site) -> ReachPanel:
    """An answer that began with one change inside, and came to another while it was written."""
    reach_panel = Playground(page, here).open().reach
    reach_panel.play.set(seed=5, max_tokens=N)
    reach_panel.open().cell("mlp 1").focus()
    for _ in range(5):
        page.keyboard.press("-")
    page.evaluate(
        "async () => (await import('/static/js/chat/session.js')).submitPrompt('Tell me a story')"
    )
    reach_panel.play.wait_tokens(5)
    reach_panel.cell("head 2.3").click()
    until(page, reach_panel.acknowledged, "the acknowledgement")
    reach_panel.settle(N)
    return reach_panel


def test_it_is_kept_plays_and_is_written_again(
    page: Page, site: Callable[..., Site], tmp_path: Path
) -> None:
    reach_panel = reached(page, site(delay=0.05))
    page.keyboard.press("Escape")
    marks = reach_panel.play.answer.locator(".mark-change").all_inner_texts()
    assert marks[0] == "MLP 1 × 0.5"
    made = Playground(page).playback
    path = made.save(tmp_path / "reached.json")
    kept = playback.read(path)
    assert kept["version"] == 2
    (segment,) = playback.segments(kept)
    assert segment["request"]["reach"] == BEGAN_WITH
    (change,) = playback.events(segment, "updated")
    assert change["reach"] == BEGAN_WITH | HEAD_OFF
    index = change["index"]

    page.get_by_role("button", name="New", exact=True).click()
    made.open(path)
    assert reach_panel.play.answer.locator(".mark-change").all_inner_texts() == marks
    reach_panel.open()
    expect(reach_panel.cell("head 2.3")).to_have_accessible_name("layer 2, head 3: off")
    expect(reach_panel.says).to_contain_text("A replay cannot be changed")
    reach_panel.cell("head 0.0").click()
    expect(reach_panel.cell("head 0.0")).to_have_accessible_name("layer 0, head 0: unchanged")
    made.seek(2)
    expect(reach_panel.cell("head 2.3")).to_have_accessible_name("layer 2, head 3: unchanged")
    expect(reach_panel.cell("mlp 1")).to_have_accessible_name("layer 1, MLP: × 0.5")

    made.again.click()
    expect(made.said).to_have_text(f"The same {N} tokens.")
    request = reach_panel.requests()[-1]
    assert request["reach"] == BEGAN_WITH
    assert [(c["index"], c["reach"]) for c in request["changes"]] == [
        (index, BEGAN_WITH | HEAD_OFF)
    ]
    assert reach_panel.ids(-1) == reach_panel.ids(0)
    made.leave.click()
    reach_panel.open()
    expect(reach_panel.cell("mlp 1")).to_have_accessible_name("layer 1, MLP: × 0.5")


def test_a_file_without_it_is_of_the_first_version(
    page: Page, site: Callable[..., Site], tmp_path: Path
) -> None:
    reach_panel = Playground(page, site()).open().reach.write(8)
    kept = playback.read(Playground(page).playback.save(tmp_path / "alone.json"))
    assert kept["version"] == 1
    assert "reach" not in playback.segments(kept)[0]["request"]
    assert len(reach_panel.ids()) == 8


@pytest.mark.quick
def test_bad_interventions_are_refused_by_name(
    page: Page, site: Callable[..., Site], tmp_path: Path
) -> None:
    reach_panel = reached(page, site(delay=0.05))
    page.keyboard.press("Escape")
    made = Playground(page).playback
    kept = playback.read(made.save(tmp_path / "reached.json"))
    reach_panel.page.get_by_role("button", name="New", exact=True).click()
    reach = playback.segments(kept)[0]["request"]["reach"]
    for bad, words in (
        ({"mlp": [{"layer": 1, "factor": 9}]}, "factor is 9, but must be a number from -8 to 8"),
        ({"mlp": [{"layer": -1, "factor": 1}]}, "layer is -1"),
        ({"eyes": []}, 'has the field "eyes"'),
        ({"steer": [{"layer": 1, "toward": 3, "strength": 1}]}, "toward is 3"),
    ):
        reach.clear()
        reach.update(bad)
        made.give(playback.as_file(kept))
        expect(made.error).to_contain_text(words)
        page.keyboard.press("Escape")
