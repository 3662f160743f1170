"""Presets with names: kept by the browser, used, deleted, and carried by files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.replay.playback import as_file
from e2e.site import Site


def dialog(page: Page) -> Locator:
    """Open the dialog of presets."""
    page.get_by_role("button", name="Named presets").click()
    found = page.get_by_role("dialog", name="Named presets")
    expect(found).to_be_visible()
    return found


def save(play: Playground, name: str) -> None:
    box = dialog(play.page)
    box.get_by_role("textbox").fill(name)
    box.get_by_role("textbox").press("Enter")
    expect(box.locator(".preset-use").filter(has_text=name)).to_be_visible()
    box.get_by_role("button", name="Close").click()


def settings(page: Page) -> dict[str, Any]:
    return {
        name: page.locator(f"#n-{name}, #{name}").input_value()
        for name in ("temperature", "top_k", "top_p", "min_p", "max_tokens", "stop-strings")
    }


@pytest.mark.quick
def test_a_preset_brings_all_settings_back_but_the_seed(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    here.set(temperature=1.3, top_k=7, max_tokens=77, seed=5)
    page.locator("#stop-strings").fill("The end")
    page.locator("#stop-strings").press("Enter")
    wanted = settings(page)
    save(here, "Poet")
    note = page.locator("#preset-note")
    expect(note).to_have_text("Poet")
    here.set(temperature=0.5)
    expect(note).to_have_text("Poet, edited")
    page.reload()
    here.wait_ready()
    expect(note).to_have_text("Poet, edited")
    page.get_by_role("button", name="Greedy").click()
    page.reload()
    here.wait_ready()
    here.set(seed=9)
    box = dialog(page)
    expect(box.locator(".preset .sub")).to_have_text(
        "temperature 1.30, top-k 7, top-p 0.95, max tokens 77, stop at The end"
    )
    box.locator(".preset-use").click()
    expect(box).to_be_hidden()
    assert settings(page) == {**wanted, "max_tokens": "77"}
    expect(page.locator("#seed")).to_have_value("9")
    expect(note).to_have_text("Poet")


def test_a_preset_acts_on_the_running_text(page: Page, site: Callable[..., Site]) -> None:
    play = Playground(page, site(delay=0.03)).open()
    play.set(temperature=1.3, max_tokens=200)
    save(play, "Warm")
    play.set(temperature=0.5)
    play.ask()
    play.wait_tokens(4)
    dialog(page).locator(".preset-use").click()
    expect(page.locator(".mark-change")).to_contain_text("temperature 0.5 → 1.3")
    page.keyboard.press("Escape")
    play.wait_done()


def test_names_are_checked_replaced_and_deleted_with_a_way_back(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    save(here, "Poet")
    here.set(temperature=1.7)
    box = dialog(page)
    name = box.get_by_role("textbox")
    for text, said in (("greedy", "one of the page’s own"), ("  ", "needs a name")):
        name.fill(text)
        box.get_by_role("button", name="Save").click()
        expect(box.get_by_role("alert")).to_contain_text(said)
    name.fill("Poet")
    box.get_by_role("button", name="Replace").click()
    expect(box.locator(".preset")).to_have_count(1)
    expect(box.locator(".preset .sub")).to_contain_text("temperature 1.70")
    box.get_by_role("button", name="Delete “Poet”").click()
    expect(box.locator(".preset")).to_have_count(0)
    box.get_by_role("button", name="Undo").click()
    expect(box.locator(".preset .sub")).to_contain_text("temperature 1.70")


def test_presets_travel_with_all_conversations(
    page: Page, play: Callable[..., Playground], tmp_path: Path
) -> None:
    here = play()
    here.set(temperature=1.3)
    save(here, "Poet")
    drawer = here.drawer.show()
    with page.expect_download() as download:
        drawer.save_all.click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    header = json.loads(gzip.decompress(path.read_bytes()))
    assert [(each["name"], each["values"]["temperature"]) for each in header["presets"]] == [
        ("Poet", 1.3)
    ]
    drawer.import_files(path)
    expect(drawer.said).to_have_text("Added 0 conversations.")
    header["presets"][0]["values"]["temperature"] = 0.25
    header["presets"].append({"name": "Bad", "values": {"temperature": "hot"}})
    header["presets"].append({"name": "Old", "values": {"temperature": 0.5}})
    drawer.import_files(as_file(json.dumps(header), "other.jsonl"))
    expect(drawer.said).to_have_text("Added 0 conversations, 2 presets.")
    drawer.import_files(as_file(json.dumps(header), "other.jsonl"))
    expect(drawer.said).to_have_text("Added 0 conversations.")
    page.keyboard.press("Escape")
    box = dialog(page)
    expect(box.locator(".preset b")).to_have_text(["Old", "Poet", "Poet (2)"])
    expect(box.locator(".preset .sub").last).to_contain_text("temperature 0.25")


def test_the_longest_name_gets_a_number_and_outlives_a_reload(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    name = "n" * 60
    given = [{"name": name, "values": {"temperature": value}} for value in (0.5, 0.25)]
    header = {"format": "tokenglass conversations", "version": 1, "presets": given}
    drawer = here.drawer.show()
    drawer.import_files(as_file(json.dumps(header), "presets.jsonl"))
    expect(drawer.said).to_have_text("Added 0 conversations, 2 presets.")
    page.reload()
    here.wait_ready()
    expect(dialog(page).locator(".preset b")).to_have_text([f"{'n' * 56} (2)", name])


@pytest.mark.parametrize(
    ("theme", "width"), [pytest.param("light", 1440, marks=pytest.mark.slow), ("dark", 360)]
)
def test_axe_finds_nothing_in_the_dialog(
    page: Page, site: Callable[..., Site], theme: str, width: int
) -> None:
    play = open_page(page, site(), color_scheme=theme)
    save(play, "A name that is rather long for a preset, but still allowed")
    page.set_viewport_size({"width": width, "height": 740})
    if width < 768:
        page.locator("#tabs").get_by_role("button", name="Sampling").click()
    box = dialog(page)
    box.get_by_role("button", name="Save").click()
    assert violations(page) == []
    assert box.evaluate("(node) => node.scrollWidth - node.clientWidth") <= 0
