"""What was reached into is kept in replay files, and written again from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from e2e import film
from e2e.film import Film
from e2e.playground import until
from e2e.reach import Hand
from e2e.site import Site

N = 60
BEGAN_WITH = {"mlp": [{"layer": 1, "factor": 0.5}]}
HEAD_OFF = {"heads": [{"layer": 2, "head": 3, "factor": 0}]}


def reached(page: Page, here: Site) -> Hand:
    """An answer that began with one change inside, and came to another while it was written."""
    hand = Hand(page, here)
    hand.play.set(seed=5, max_tokens=N)
    hand.open().cell("mlp 1").focus()
    for _ in range(5):
        page.keyboard.press("-")
    page.evaluate("async () => (await import('/static/js/session.js')).ask('Tell me a story')")
    hand.play.wait_tokens(5)
    hand.cell("head 2.3").click()
    until(page, hand.acknowledged, "the acknowledgement")
    hand.settle(N)
    return hand


def test_it_is_kept_plays_and_is_written_again(
    page: Page, site: Callable[..., Site], tmp_path: Path
) -> None:
    hand = reached(page, site(delay=0.05))
    page.keyboard.press("Escape")
    marks = hand.play.answer.locator(".mark-change").all_inner_texts()
    assert marks[0] == "MLP 1 × 0.5"
    made = Film(page)
    path = made.save(tmp_path / "reached.json")
    kept = film.read(path)
    assert kept["version"] == 2
    (segment,) = film.segments(kept)
    assert segment["request"]["reach"] == BEGAN_WITH
    (change,) = film.events(segment, "updated")
    assert change["reach"] == BEGAN_WITH | HEAD_OFF
    index = change["index"]

    page.get_by_role("button", name="New", exact=True).click()
    made.open(path)
    assert hand.play.answer.locator(".mark-change").all_inner_texts() == marks
    hand.open()
    expect(hand.cell("head 2.3")).to_have_accessible_name("layer 2, head 3: off")
    expect(hand.says).to_contain_text("a replay changes nothing")
    hand.cell("head 0.0").click()
    expect(hand.cell("head 0.0")).to_have_accessible_name("layer 0, head 0: left alone")
    made.seek(2)
    expect(hand.cell("head 2.3")).to_have_accessible_name("layer 2, head 3: left alone")
    expect(hand.cell("mlp 1")).to_have_accessible_name("layer 1, MLP: × 0.5")

    made.again.click()
    expect(made.said).to_have_text(f"The same {N} tokens.")
    request = hand.requests()[-1]
    assert request["reach"] == BEGAN_WITH
    assert [(c["index"], c["reach"]) for c in request["changes"]] == [
        (index, BEGAN_WITH | HEAD_OFF)
    ]
    assert hand.ids(-1) == hand.ids(0)
    made.leave.click()
    hand.open()
    expect(hand.cell("mlp 1")).to_have_accessible_name("layer 1, MLP: × 0.5")


def test_a_file_without_it_is_of_the_first_version(
    page: Page, site: Callable[..., Site], tmp_path: Path
) -> None:
    hand = Hand(page, site()).write(8)
    kept = film.read(Film(page).save(tmp_path / "alone.json"))
    assert kept["version"] == 1
    assert "reach" not in film.segments(kept)[0]["request"]
    assert len(hand.ids()) == 8


def test_bad_interventions_are_refused_by_name(
    page: Page, site: Callable[..., Site], tmp_path: Path
) -> None:
    hand = reached(page, site(delay=0.05))
    page.keyboard.press("Escape")
    made = Film(page)
    kept = film.read(made.save(tmp_path / "reached.json"))
    hand.page.get_by_role("button", name="New", exact=True).click()
    reach = film.segments(kept)[0]["request"]["reach"]
    for bad, words in (
        ({"mlp": [{"layer": 1, "factor": 9}]}, "factor is 9, but must be a number from -8 to 8"),
        ({"mlp": [{"layer": -1, "factor": 1}]}, "layer is -1"),
        ({"eyes": []}, 'has the field "eyes"'),
        ({"steer": [{"layer": 1, "toward": 3, "strength": 1}]}, "toward is 3"),
    ):
        reach.clear()
        reach.update(bad)
        made.give(film.as_file(kept))
        expect(made.error).to_contain_text(words)
        page.keyboard.press("Escape")
