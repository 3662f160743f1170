"""Decoder and encoder in Attention: the masks and weights of both, and what they cost."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from e2e.bundled import ask_engine
from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from gpu.inspection.requests import AttentionFrom, EncoderAttention
from tests.app import fake_inspection
from tests.app.fake_encoder import INFO, ids_of
from tests.app.fake_options import FakeOptions, info_of

SENTENCE = "the fox saw the owl"


def read(play: Playground, sentence: str = SENTENCE) -> LookPanel:
    """Read a sentence in the view; return the panel."""
    play.set(max_tokens=2, seed=4)
    play.ask()
    play.wait_tokens(2)
    play.wait_done()
    look = play.look.open("attention")
    look.panel.get_by_text("Decoder and encoder", exact=True).click()
    look.panel.get_by_label("Sentence").fill(sentence)
    look.panel.get_by_role("button", name="Read", exact=True).click()
    expect(look.source).to_contain_text("Read by the loaded model one token at a time")
    return look


@pytest.mark.quick
def test_a_decoder_attends_to_what_came_before(page: Page, bundled: Site) -> None:
    look = read(Playground(page, bundled).open())
    expect(look.panel.locator(".view-masks .mk-one")).to_contain_text(
        "press the model’s name at the top of the page, then “Change the model…”"
    )
    ids = bundled.engine.tokenizer.encode(SENTENCE, bos=False, specials=False)
    rows, n = look.csv(), len(ids)
    assert len(rows) == n * n
    for i, row in enumerate(rows):
        assert row["may attend"] == ("yes" if i % n <= i // n else "no")
    for position in (0, n - 1):
        weights = ask_engine(bundled, AttentionFrom(ids[: position + 1], position))["weights"]
        got = [float(row["weight"]) for row in rows[position * n :][: position + 1]]
        np.testing.assert_allclose(got, weights.mean(axis=(0, 1)), atol=1e-5)
    cells = (
        look.panel.locator(".view-masks .mk-table tbody tr").nth(1).locator("td").all_inner_texts()
    )
    assert cells == [str(n * (n + 1) // 2), "–"]
    matrix = look.panel.get_by_role("slider", name="Attention of the decoder")
    matrix.focus()
    for key in ("Home", "ArrowDown", "ArrowRight", "ArrowRight"):
        matrix.press(key)
    expect(matrix).to_have_attribute("aria-valuetext", re.compile("may not attend to .*after it"))
    matrix.press("ArrowLeft")
    expect(matrix).to_have_attribute("aria-valuetext", re.compile(r"attends to .* with [\d.]+ %"))
    assert violations(page) == []


def test_an_encoder_attends_to_both_sides(page: Page, site: Callable[..., Site]) -> None:
    here = site(embedding=INFO)
    look = read(open_page(page, here), "Once upon")
    ids = ids_of("Once upon")
    rows = [row for row in look.csv() if row["model"] == INFO.name]
    answer = fake_inspection.answer(EncoderAttention(ids), info_of(FakeOptions(embedding=INFO)))
    assert {row["may attend"] for row in rows} == {"yes"}
    got = [float(row["weight"]) for row in rows]
    np.testing.assert_allclose(got, answer["weights"].mean(axis=(0, 1)).ravel(), atol=1e-5)
    view = look.panel.locator(".view-masks")
    view.get_by_text("Attends", exact=True).click()
    view.get_by_label("Layer of the encoder").select_option("1")
    rows = [row for row in look.csv() if row["model"] == INFO.name]
    got = [float(row["weight"]) for row in rows]
    np.testing.assert_allclose(got, answer["weights"][1].mean(axis=0).ravel(), atol=1e-5)
    cells = (
        look.panel.locator(".view-masks .mk-table tbody tr").nth(1).locator("td").all_inner_texts()
    )
    assert cells[1] == str(len(ids) ** 2)
    assert violations(page) == []


def test_the_tour_shows_the_heads(page: Page, site: Callable[..., Site]) -> None:
    look = read(open_page(page, site()))
    expect(look.panel.locator(".at-map")).to_be_hidden()
    page.evaluate("async () => void (await import('/static/js/tour/layers.js')).chooseHead(1, 0)")
    expect(look.panel.locator(".at-map")).to_be_visible()
    expect(look.panel.get_by_role("radio", name="Heads")).to_be_checked()
    expect(look.panel.locator(".at-summary")).to_contain_text("layer 1, head 0")


@pytest.mark.parametrize("width", [360, 768])
def test_both_fit_small_windows(page: Page, site: Callable[..., Site], width: int) -> None:
    play = open_page(page, site(embedding=INFO))
    look = read(play)
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(100)
    assert play.overflow() <= 0
    view = look.panel.locator(".view-masks")
    assert view.evaluate("(n) => n.scrollWidth - n.clientWidth") <= 0
    boxes = [box.bounding_box() for box in look.panel.locator(".view-masks .mk-figure").all()]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"], "one under the other"
