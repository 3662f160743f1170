"""Watermarks on the page: green and red tokens as they come, and the view of Tokens that finds
them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.look.test_looks import open_page, violations
from e2e.look.test_tokens import show
from e2e.playground import Playground
from e2e.site import Site
from gpu import Greenlists, WatermarkConfig, detect_watermark

KEY = 77
RATIO = 0.25
BIAS = 8.0


def ask_marked(play: Playground) -> list[dict[str, object]]:
    """Write an answer with a watermark; return its token events."""
    page = play.page
    if page.locator("#penalties").get_attribute("open") is None:
        page.locator("#penalties summary").click()
    page.get_by_role("textbox", name="watermark, value").fill(f"{BIAS:g}")
    page.get_by_role("textbox", name="Watermark key").fill(str(KEY))
    page.get_by_role("textbox", name="Watermark key").press("Enter")
    expect(page.locator("#penalties-acting")).to_have_text(f"watermark {BIAS:.2f}")
    play.ask()
    play.wait_done()
    return play.messages.events("token")


def bits(probability: float) -> float:
    """KL divergence of the draw with the bias from the one without, from its definition."""
    whole = probability * math.exp(BIAS) + 1 - probability
    p = (probability, 1 - probability)
    q = (probability * math.exp(BIAS) / whole, (1 - probability) / whole)
    return sum(b * math.log2(b / a) for a, b in zip(p, q, strict=True) if b > 0)


@pytest.mark.quick
def test_the_view_counts_the_green_tokens_of_the_answer(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    tokens = [token for token in ask_marked(play) if not token["eos"]]
    ids = [int(str(token["id"])) for token in tokens]
    vocab_size = bundled.engine.require_ready().model.vocab_size
    config = WatermarkConfig(RATIO, KEY)
    want = detect_watermark(ids, config, Greenlists(vocab_size), window=25)
    marks = [token["watermark"] for token in tokens]
    assert [mark["green"] for mark in marks][1:] == list(want.green[1:])
    shown = page.locator(".tok[data-green]").evaluate_all(
        "(all) => all.map((t) => t.dataset.green)"
    )
    assert shown[: len(marks)] == [str(mark["green"]).lower() for mark in marks]
    look = show(play, "Watermark")
    figures = look.panel.locator(".view-watermark dl")
    expect(figures).to_contain_text(f"{want.z_score:.2f}")
    n = want.num_tokens_scored
    expect(figures).to_contain_text(f"{want.num_green_tokens} of {n} tokens")
    verdict = "A watermark of this key" if want.prediction else "No watermark of this key"
    expect(look.panel.get_by_text(verdict)).to_be_visible()
    expect(look.source).to_contain_text("in Sampling under “penalties and more”")
    rows = look.csv()
    sides = {None: "", True: "green", False: "red"}
    assert [row["green"] for row in rows] == [sides[green] for green in want.green]
    z = [float(row["z of the last 25"]) for row in rows if row["z of the last 25"]]
    assert z == pytest.approx([each for each in want.window_z if each is not None])
    expect(play.stats).to_contain_text(f"z {want.z_score:.1f}, ")
    shown_share = re.search(r"([\d.]+) % green", play.stats.text_content() or "")
    assert shown_share is not None
    # 39 of 48 are 81.25 %, which Python writes with one digit as 81.2, and the page as 81.3.
    assert float(shown_share[1]) == pytest.approx(100 * want.green_fraction, abs=0.05 + 1e-9)
    assert violations(page) == []


def test_the_view_looks_for_the_self_hash_that_is_set(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    play.set(seed=1)  # some texts are too short for a verdict
    page.locator("#penalties summary").click()
    page.get_by_role("textbox", name="self-hash, value").fill("3")
    tokens = [token for token in ask_marked(play) if not token["eos"]]
    ids = [int(str(token["id"])) for token in tokens]
    config = WatermarkConfig(RATIO, KEY, "selfhash", 3)
    want = detect_watermark(
        ids, config, Greenlists(bundled.engine.require_ready().model.vocab_size)
    )
    look = show(play, "Watermark")
    expect(look.panel.locator(".view-watermark dl")).to_contain_text(f"{want.z_score:.2f}")
    assert want.prediction
    expect(look.panel.get_by_text("A watermark of this key")).to_be_visible()
    expect(look.source).to_contain_text("self-hash of 3 tokens")


def test_the_cost_is_the_divergence_of_the_draws(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    marks = [token["watermark"] for token in ask_marked(play)]
    mean = sum(bits(mark["probability"]) for mark in marks) / len(marks)
    look = show(play, "Watermark")
    cost = look.panel.locator(".view-watermark dl div", has_text="cost").locator("dd")
    expect(cost).to_contain_text("bits a token")
    assert float(cost.inner_text().split()[0]) == pytest.approx(mean, rel=0.06)


def test_a_pasted_text_is_looked_at(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append("400 .*/watermark")
    look = show(open_page(page, site()), "Watermark")
    expect(look.panel.get_by_text("Paste a text to see whether")).to_be_visible()
    field = look.panel.get_by_label("Text to look for a watermark in")
    field.fill("The fox was quick and the wood was dark, and nobody saw it leave.")
    expect(look.panel.get_by_text("No watermark of this key")).to_be_visible()
    assert len(look.csv()) > 5
    field.fill("x")
    expect(look.panel.get_by_text("are the fewest in which a watermark")).to_be_visible()
