"""Encoder–decoder in Attention: what is written, who attends to whom, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page, violations
from e2e.site import Site
from gpu.inspection.requests import Answer, Seq2Seq
from tests.app import fake_inspection
from tests.app.fake_encoder import SEQ2SEQ_INFO, SEQ2SEQ_TEXTS, seq2seq_ids
from tests.app.fake_options import FakeOptions, info_of

TEXT = "the fox saw"


def open_view(page: Page, here: Site) -> LookPanel:
    """Open the view, which needs an answer; return the panel."""
    play = open_page(page, here)
    play.set(max_tokens=2, seed=4)
    play.ask()
    play.wait_tokens(2)
    play.wait_done()
    look = play.look.open("attention")
    look.panel.get_by_text("Encoder–decoder", exact=True).click()
    return look


def write(page: Page, here: Site, text: str = TEXT) -> LookPanel:
    """Have a text written in the view; return the panel."""
    look = open_view(page, here)
    look.panel.get_by_label("Text to write about").fill(text)
    look.panel.get_by_role("button", name="Write", exact=True).click()
    expect(look.source).to_contain_text("Written by little-t5")
    return look


def answer_of(text: str = TEXT) -> Answer:
    info = info_of(FakeOptions(encoder_decoder=SEQ2SEQ_INFO))
    return fake_inspection.answer(Seq2Seq(seq2seq_ids(text), SEQ2SEQ_INFO.max_written), info)


@pytest.mark.quick
def test_the_three_attentions_are_those_of_the_engine(
    page: Page, site: Callable[..., Site]
) -> None:
    look, answer = write(page, site(encoder_decoder=SEQ2SEQ_INFO)), answer_of()
    rows = look.csv()
    for name, key in (("encoder", "encoder"), ("decoder", "decoder"), ("cross-attention", "cross")):
        of_one = [row for row in rows if row["attention"] == name]
        means = answer[key].mean(axis=(0, 1)).ravel()
        np.testing.assert_allclose([float(row["weight"]) for row in of_one], means, atol=1e-5)
        assert [row["may attend"] == "yes" for row in of_one] == (means > 0).tolist()
    piece, written = SEQ2SEQ_TEXTS.tokenizer.piece, answer["written"].tolist()
    assert look.panel.locator("button.ed-token").all_inner_texts() == [piece(i) for i in written]
    n, m = len(seq2seq_ids(TEXT)), len(written)
    cells = look.panel.locator(".view-encoder-decoder .mk-table tbody tr").all()
    assert cells[2].locator("td").all_inner_texts() == [
        str(n * n), str(m * (m + 1) // 2), str(m * n),
    ]  # fmt: skip
    assert violations(page) == []


def test_a_written_token_shows_what_it_looked_at(page: Page, site: Callable[..., Site]) -> None:
    """By pointing at it, by keyboard, in one layer and head, and in the matrix."""
    look, answer = write(page, site(encoder_decoder=SEQ2SEQ_INFO)), answer_of()
    look.panel.get_by_label("Layer of the cross-attention").select_option("1")
    look.panel.get_by_label("Head of the cross-attention").select_option("2")
    piece = SEQ2SEQ_TEXTS.tokenizer.piece
    tokens, words = look.panel.locator("button.ed-token"), look.panel.locator(".ed-side .mk-one")
    written, probabilities = answer["written"].tolist(), answer["probabilities"]
    for i, choose in ((3, "hover"), (5, "focus"), (1, "click")):
        getattr(tokens.nth(i), choose)()
        expect(tokens.nth(i)).to_have_attribute("aria-pressed", "true")
        most = piece(seq2seq_ids(TEXT)[int(answer["cross"][1, 2, i].argmax())])
        expect(words).to_contain_text(f"It looked at “{'␣' if most == ' ' else most.strip()}” most")
        expect(words).to_contain_text(f"“{piece(written[i])}” was written with probability")
        expect(words).to_contain_text(f"{probabilities[i]:.2f}")
    matrix = look.panel.get_by_role("slider", name="Cross-attention")
    matrix.focus()
    matrix.press("ArrowDown")
    expect(words).to_contain_text("To write ")
    expect(matrix).to_have_attribute("aria-valuetext", re.compile("^To write .*head 2 in layer 1"))
    rows = [row for row in look.csv() if row["attention"] == "cross-attention"]
    got = [float(row["weight"]) for row in rows]
    np.testing.assert_allclose(got, answer["cross"][1, 2].ravel(), atol=1e-5)


def test_what_the_decoder_may_not_see_comes_after(page: Page, site: Callable[..., Site]) -> None:
    look = write(page, site(encoder_decoder=SEQ2SEQ_INFO))
    look.panel.locator(".view-encoder-decoder").get_by_text("May attend", exact=True).click()
    matrix = look.panel.get_by_role("slider", name="Attention of the decoder")
    matrix.focus()
    matrix.press("ArrowRight")
    expect(matrix).to_have_attribute("aria-valuetext", re.compile("may not attend to .*after it"))
    expect(look.panel.get_by_label("Layer of the decoder").last).to_be_hidden()


def test_a_text_that_is_too_long_is_refused(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append("Failed to load resource")
    look = write(page, site(encoder_decoder=SEQ2SEQ_INFO))
    look.panel.get_by_label("Text to write about").fill("the fox " * 20)
    look.panel.get_by_role("button", name="Write", exact=True).click()
    expect(look.source).to_contain_text("the encoder reads at most 16; shorten it")
    expect(look.panel.get_by_role("button", name="Write", exact=True)).to_be_enabled()


def test_without_an_encoder_decoder_it_says_how_to_start_one(
    page: Page, site: Callable[..., Site]
) -> None:
    look = open_view(page, site())
    expect(look.panel.get_by_text("Start it with --encoder-decoder-model FOLDER")).to_be_visible()
    expect(look.panel.get_by_label("Text to write about")).to_be_hidden()
    assert violations(page) == []


@pytest.mark.parametrize("width", [360, 768])
def test_it_fits_small_windows(page: Page, site: Callable[..., Site], width: int) -> None:
    look = write(page, site(encoder_decoder=SEQ2SEQ_INFO))
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(100)
    view = look.panel.locator(".view-encoder-decoder")
    assert view.evaluate("(n) => n.scrollWidth - n.clientWidth") <= 0
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    boxes = [box.bounding_box() for box in view.locator(".mk-figure").all()]
    for above, below in pairwise(boxes):
        assert above is not None
        assert below is not None
        assert above["y"] + above["height"] <= below["y"], "one under the other"
