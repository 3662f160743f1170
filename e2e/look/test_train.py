"""Training on the page: what it takes, its losses, and the adapter with its slider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app import tale
from app.train.sizes import train_targets
from e2e.bundled import bundled_site
from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from gpu import Inventory, lora_changes
from tests.gpu.lora import random_loras

TRAIN_MS = 180_000
LINES = "Once upon a time a fox said yes.\n" * 5


def memory(look: LookPanel) -> list[list[str]]:
    """Return the cells of the table of memory."""
    rows = look.panel.locator(".tr-sizes tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


@pytest.mark.quick
def test_the_memory_is_that_of_the_chosen_matrices(page: Page, site: Callable[..., Site]) -> None:
    look = open_page(page, site()).look.open("train")
    for target in ("k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        look.panel.get_by_label(target).uncheck()
    look.panel.get_by_label("Rank").fill("4")
    [q, *_] = train_targets(tale.model_dir())
    trained, all = 4 * q.width, Inventory.from_folder(tale.model_dir()).parameters
    first, weights, gradients, moments, together = memory(look)
    assert first == ["numbers trained", f"{trained:,}", f"{all:,}"]
    assert weights[1:] == [f"{4 * (all + trained) / 1e6:.1f} MB", f"{4 * all / 1e6:.1f} MB"]
    assert gradients[1:] == [f"{4 * trained / 1e3:.1f} KB", f"{4 * all / 1e6:.1f} MB"]
    assert moments[1:] == [f"{8 * trained / 1e3:.1f} KB", f"{8 * all / 1e6:.1f} MB"]
    assert together[2] == f"{16 * all / 1e6:.1f} MB"
    assert violations(page) == []


def test_a_step_on_a_text_is_shown(page: Page, own_bundled: Site) -> None:
    look = Playground(page, own_bundled).open().look.open("train")
    look.panel.get_by_text("One step", exact=True).click()
    look.panel.get_by_label("Text", exact=True).fill("Once upon a time")
    look.panel.get_by_role("button", name="Take one step").click()
    says = look.panel.get_by_role("status")
    expect(says).to_contain_text("The mean loss is", timeout=TRAIN_MS)
    ids = own_bundled.engine.tokenizer.encode("Once upon a time", specials=False)
    expect(look.panel.locator(".tr-tokens li")).to_have_count(len(ids))
    assert violations(page) == []
    rows = look.csv()
    assert {row["matrix"] for row in rows if row["layer"] == "3"} == {
        "input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj",
        "post_attention_layernorm", "self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj",
        "self_attn.v_proj",
    }  # fmt: skip
    assert all(float(row["norm of the gradient"]) > 0 for row in rows)


def test_what_an_adapter_changed_is_that_of_its_files(page: Page) -> None:
    folder = random_loras.of_model(tale.model_dir(), "all")
    with bundled_site({"tone": folder}) as site:
        look = Playground(page, site).open().look.open("train")
        look.panel.get_by_text("What LoRA changed").click()
        expect(look.panel.locator(".tr-grid tbody tr")).to_have_count(8)
        look.panel.get_by_role("button", name="mlp.up_proj of layer 2").click()
        expect(look.panel.locator(".view-changes .sub")).to_contain_text(
            "layers.2.mlp.up_proj: norm"
        )
        assert violations(page) == []
        rows = {row["matrix"]: row for row in look.csv()}
        for change in lora_changes("tone", folder, tale.model_dir()):
            row = rows[change.module]
            assert float(row["norm of ΔW"]) == pytest.approx(change.norm)
            values = [float(value) for value in row["singular values"].split()]
            assert values == pytest.approx(list(change.singular_values))


def test_bad_input_is_answered_in_words(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append("status of 400")
    look = open_page(page, site()).look.open("train")
    start = look.panel.get_by_role("button", name="Train", exact=True)
    says = look.panel.get_by_role("status")
    expect(says).to_have_text("Nothing has been trained yet.")
    missing = look.panel.get_by_text("Type your lines first; the grey ones are an example.")
    expect(missing).to_be_visible()
    start.click()
    expect(says).to_contain_text(
        "There are no lines to train on; write texts, or question => answer"
    )
    look.panel.get_by_label("Lines", exact=True).fill("Once upon a time")
    expect(missing).to_be_hidden()
    look.panel.get_by_label("Rank").fill("0")
    start.click()
    expect(says).to_contain_text("Expected a rank from 1 to 512, but got 0")
    look.panel.get_by_label("Rank").fill("8")
    for box in look.panel.get_by_role("checkbox").all():
        box.uncheck()
    assert memory(look)[0][:2] == ["numbers trained", "0"]
    start.click()
    expect(says).to_have_text("Choose at least one matrix to adapt.")


@pytest.fixture
def own_bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with bundled_site() as site:
        monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path))
        yield site


def test_an_adapter_is_trained_and_has_its_slider(
    page: Page, own_bundled: Site, allowed_console: list[str]
) -> None:
    play = Playground(page, own_bundled).open()
    look = play.look.open("train")
    look.panel.get_by_label("Lines", exact=True).fill(LINES)
    look.panel.get_by_label("Adapter’s name").fill("fox")
    look.panel.get_by_label("Steps").fill("4")
    look.panel.get_by_role("button", name="Train", exact=True).click()
    says = look.panel.get_by_role("status")
    expect(says).to_contain_text("fox is loaded after 4 steps", timeout=TRAIN_MS)
    hello = own_bundled.engine.require_ready()
    assert [lora.name for lora in hello.model.loras] == ["fox"]
    rows = look.csv()
    assert [row["step"] for row in rows] == ["0", "1", "2", "3", "4"]
    losses = [float(row["loss"]) for row in rows[1:]]
    assert losses[-1] < losses[0]
    assert float(rows[-1]["held-out loss"]) < float(rows[0]["held-out loss"])
    look.panel.get_by_role("button", name="Close").click()
    slider = page.get_by_role("slider", name="fox", exact=True)
    expect(slider).to_have_attribute("aria-valuetext", "1, as trained")
    slider.fill("0")
    switched_off = slider.get_attribute("aria-valuetext")
    assert switched_off != "1, as trained"
    look = play.look.open("train")
    look.panel.get_by_label("Rank").fill("0")
    allowed_console.append("status of 400")
    look.panel.get_by_role("button", name="Train", exact=True).click()
    expect(says).to_contain_text("Expected a rank from 1 to 512, but got 0")
    look.panel.get_by_role("button", name="Close").click()
    assert slider.get_attribute("aria-valuetext") == switched_off, "a refusal switches nothing on"


def test_a_training_can_be_cancelled(page: Page, own_bundled: Site) -> None:
    look = Playground(page, own_bundled).open().look.open("train")
    look.panel.get_by_label("Lines", exact=True).fill(LINES)
    look.panel.get_by_label("Steps").fill("9999")
    look.panel.get_by_role("button", name="Train", exact=True).click()
    says = look.panel.get_by_role("status")
    expect(says).to_contain_text(" of 9,999, about", timeout=TRAIN_MS)
    look.panel.get_by_role("button", name="Cancel", exact=True).click()
    expect(says).to_contain_text("mine was cancelled after")
    expect(says).to_contain_text("nothing is kept of it")
