"""Adapters on the page: sliders beside the sampling settings, acting while the text is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app import tale
from e2e.bundled import bundled_site
from e2e.interventions.reach import ReachPanel
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from tests.gpu.lora import random_loras

NAMES = ("tone", "a-very-long-name-of-an-adapter")


@pytest.fixture
def reach_panel(page: Page, site: Callable[..., Site]) -> ReachPanel:
    return Playground(page, site(delay=0.03, loras=NAMES)).open().reach


def slider(page: Page, name: str) -> Any:
    return page.get_by_role("slider", name=name, exact=True)


def loras(**strengths: float) -> dict[str, Any]:
    return {"loras": [{"name": name, "strength": s} for name, s in strengths.items()]}


def test_without_adapters_there_is_nothing_to_see(
    page: Page, play: Callable[..., Playground]
) -> None:
    play()
    expect(page.locator("#loras")).to_be_hidden()


def test_a_slider_acts_while_writing_and_is_marked_where_it_began(
    page: Page, reach_panel: ReachPanel
) -> None:
    reach_panel.play.set(max_tokens=200, seed=5)
    reach_panel.play.ask()
    reach_panel.play.wait_tokens(5)
    slider(page, "tone").fill("0.5")
    reach_panel.wait_asked(loras(tone=0.5))
    mark = page.locator(".mark-change")
    expect(mark).to_have_text("adapter tone × 0.5")
    index = until(page, reach_panel.acknowledged, "the acknowledgement")[0]["index"]
    after = mark.evaluate(
        "(node) => node.parentNode.querySelector('.mark-change ~ .tok').dataset.i"
    )
    assert int(after) == index >= 5
    expect(slider(page, "tone")).to_have_attribute("aria-valuetext", "0.5")
    expect(reach_panel.note).to_have_text("1 intervention")
    page.get_by_role("button", name="All off").click()
    reach_panel.wait_asked({})
    expect(page.locator(".mark-change").last).to_have_text("adapter tone off")
    page.locator("#loras").get_by_role("button", name="Undo").click()
    reach_panel.wait_asked(loras(tone=0.5))
    expect(slider(page, "tone")).to_have_value("0.5")
    reach_panel.play.stop.click()
    reach_panel.play.wait_done()


def test_what_is_set_acts_on_the_next_answer_and_is_kept(
    page: Page, reach_panel: ReachPanel
) -> None:
    box = page.get_by_role("textbox", name="tone, strength")
    for wrong in ("9", "much"):
        box.fill(wrong)
        box.press("Enter")
        expect(box).to_have_attribute("aria-invalid", "true")
    box.fill("1")
    box.press("Enter")
    expect(slider(page, "tone")).to_have_attribute("aria-valuetext", "1, as trained")
    slider(page, NAMES[1]).press("ArrowRight")
    expect(slider(page, NAMES[1])).to_have_value("0.05")
    reach_panel.write(4)
    want = loras(**{NAMES[1]: 0.05, "tone": 1})
    assert reach_panel.wait_requests(1)["reach"] == want
    page.reload()
    reach_panel.play.wait_ready()
    expect(slider(page, "tone")).to_have_value("1")
    expect(slider(page, NAMES[1])).to_have_value("0.05")


@pytest.mark.parametrize("width", [360, 1440])
def test_long_names_stay_in_their_place(page: Page, reach_panel: ReachPanel, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert reach_panel.play.overflow() == 0
    label = page.locator("#loras label").last
    expect(label).to_have_attribute("title", f"{NAMES[1]}: rank 8 in 32 modules, 40,960 weights;"
                                             " 1 is the trained strength")  # fmt: skip


def test_the_bundled_model_with_an_adapter_and_without(page: Page) -> None:
    """A change while writing acts from the announced token on; without it, the same seed gives the
    text of the base."""
    adapter = random_loras.of_model(tale.model_dir(), "attention")
    with bundled_site(loras={"tone": adapter}) as site:
        reach_panel = Playground(page, site).open().reach
        reach_panel.play.set(max_tokens=100, seed=1)
        reach_panel.play.ask("Tell me a story about a fox who finds a lantern")
        reach_panel.play.wait_tokens(2)
        reach_panel.play.wait_done()
        page.get_by_role("button", name="Regenerate").click()
        reach_panel.wait_requests(2)
        slider(page, "tone").focus()
        page.keyboard.press("End")
        index = until(page, reach_panel.acknowledged, "the acknowledgement")[0]["index"]
        reach_panel.play.wait_done()
        alone, adapted = reach_panel.ids(0), reach_panel.ids(1)
        assert adapted[:index] == alone[:index]
        assert adapted[index:] != alone[index:]
        page.get_by_role("button", name="All off").click()
        page.get_by_role("button", name="Regenerate").click()
        reach_panel.wait_requests(3)
        reach_panel.play.wait_tokens(1)
        reach_panel.play.wait_done()
        assert reach_panel.ids(2) == alone
