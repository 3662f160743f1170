"""Forward pass: the lines of a real run as the engine gives them, and how they are driven."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from e2e.look.cache_view import wrote
from e2e.look.panel import LookPanel
from e2e.look.test_lens import pin
from e2e.look.test_looks import violations
from e2e.playground import Playground
from e2e.site import Site
from gpu import Engine
from gpu.inspection.requests import Answer, ForwardPass
from tests.gpu.models import random_models
from tests.serving import serving

LINES = [
    "W_E lookup", "layers 0 … 1", "norm1", "W_Q, W_K, W_V", "RoPE", "q · k / √d_head", "softmax",
    "weighted V", "W_O", "residual add", "norm2", "W_gate", "SiLU", "W_up", "multiply", "W_down",
    "residual add", "layers 3 … 7", "final norm", "W_unembed", "draw",
]  # fmt: skip
LAYER, HEAD = 2, 1


def line(page: Page, key: str) -> None:
    """Open a line."""
    button = page.locator(f'.fw-line[data-line="{key}"] > button')
    if button.get_attribute("aria-expanded") != "true":
        button.click()
    expect(button).to_have_attribute("aria-expanded", "true")


def columns(look: LookPanel, key: str) -> dict[str, list[str]]:
    """Return the numbers of a line, by column."""
    line(look.page, key)
    rows = look.csv()
    return {name: [row[name] for row in rows] for name in rows[0]}


def expected(answer: Answer, head: int) -> dict[tuple[str, str], np.ndarray]:
    """Return the numbers of lines and columns, as the engine gives them."""
    return {
        ("embedding", "W_E[token]"): answer["embedding"],
        ("attn_norm", "norm(x)"): answer["attn_norm"],
        ("qkv", "q"): answer["q"][head],
        ("qkv", "k"): answer["k"][answer.info["kv_head"]],
        ("rope", "q rotated"): answer["rot_q"][head],
        ("rope", "k in the cache"): answer["keys"][-1],
        ("scores", "q · k"): answer["dots"],
        ("softmax", "weight"): answer["weights"],
        ("weighted", "Σ weight · v"): answer["attn_out"][head],
        ("out", "norm of its part"): answer["head_norms"],
        ("add_attention", "Δ attention"): answer["resid_mid"] - answer["resid_pre"],
        ("gate", "gate"): answer["gate"],
        ("hidden", "gives"): answer["ffn_hidden"],
        ("add_mlp", "after the MLP"): answer["resid_post"],
        ("unembed", "score"): answer["near_logits"][-1],
    }  # fmt: skip


@pytest.mark.quick
def test_every_line_has_the_numbers_of_the_engine(
    page: Page, bundled: Site, bundled_engine: Engine
) -> None:
    play = Playground(page, bundled).open()
    play.set(max_tokens=10, seed=5)
    play.ask("Tell me a story about a fox who finds a lantern")
    play.wait_tokens(10)
    play.wait_done()
    tokens = play.messages.events("token")
    prompt = [token["id"] for token in play.messages.events("accepted")[0]["prompt"]]
    ids = prompt + [token["id"] for token in tokens]
    at = len(prompt) + 4
    assert not [m for m in play.messages.sent if m["type"] == "inspect"], "it is closed"
    pin(page, 4)
    look = play.look.open("forward")
    page.get_by_label("Layer", exact=True).select_option(str(LAYER))
    page.get_by_label("Head", exact=True).select_option(str(HEAD))
    expect(page.locator(".fw-summary")).to_contain_text(f"through layer {LAYER}")
    answer = bundled_engine.inspect(ForwardPass(ids[: at + 1], at, LAYER, HEAD)).result()
    overview = look.csv()
    assert [row["step"] for row in overview] == LINES
    steps = {row["step"]: row for row in overview}
    assert steps["W_gate"]["tensors"] == f"model.layers.{LAYER}.mlp.gate_proj.weight"
    assert steps["W_O"]["dispatches"] == f"layer{LAYER:02}.attn.out"
    assert steps["W_O"]["tensors"] == f"model.layers.{LAYER}.self_attn.o_proj.weight"
    assert float(steps["norm1"]["norm"]) == pytest.approx(np.linalg.norm(answer["attn_norm"]))
    found: dict[str, dict[str, list[str]]] = {}
    for (key, column), want in expected(answer, HEAD).items():
        if key not in found:
            found[key] = columns(look, key)
        np.testing.assert_array_equal(
            np.array(found[key][column], np.float32), want, f"{key} {column}"
        )
    line(page, "draw")
    following = bundled_engine.tokenizer.piece(ids[at + 1]).strip()
    expect(page.locator('[data-line="draw"] .fw-note')).to_contain_text(f"Drawn: “{following}”")


@pytest.mark.parametrize(
    ("name", "lookup", "positions"),
    [
        ("gpt2", "W_E[token] + W_pos[position]", "no RoPE: this layer has no rotary positions"),
        ("granite", "W_E[token] · 12.0", "RoPE: query and key, rotated by the token’s position"),
    ],
)
def test_positions_and_factors_are_those_of_the_model(
    page: Page, name: str, lookup: str, positions: str
) -> None:
    with serving("--model", random_models.folder(name)) as url:
        play = Playground(page, url=url).open()
        play.write(n=4)
        look = play.look.open("forward")
        line(page, "embedding")
        expect(page.locator('[data-line="embedding"] figcaption b')).to_have_text(lookup)
        steps = {row["step"]: row["what"] for row in look_at_all(look)}
        step, what = positions.split(": ")
        assert steps[step].startswith(what)


def look_at_all(look: LookPanel) -> list[dict[str, str]]:
    """Return the rows of all lines: those of one are saved while it is open."""
    for button in look.page.locator('.fw-line > button[aria-expanded="true"]').all():
        button.click()
    return look.csv()


# ---- driving it ------------------------------------------------------------------------------


def fake_run(page: Page, here: Site, n: int = 12) -> LookPanel:
    look = wrote(page, here, n).look.open("forward")
    expect(page.locator(".fw-line")).not_to_have_count(0)
    return look


def test_lines_and_numbers_by_keyboard(page: Page, site: Callable[..., Site]) -> None:
    look = fake_run(page, site())
    buttons = page.locator(".fw-head")
    assert sorted(buttons.evaluate_all("(all) => all.map((one) => one.tabIndex)"))[-2:] == [-1, 0]
    buttons.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(buttons.nth(2)).to_be_focused()
    page.keyboard.press("Enter")
    expect(buttons.nth(2)).to_have_attribute("aria-expanded", "true")
    strip = page.get_by_role("slider", name="norm(x)")
    strip.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(strip).to_have_attribute("aria-valuenow", "2")
    rows = look.csv()
    value = float(rows[2]["norm(x)"])
    readout = page.locator('.fw-line[data-line="attn_norm"] .fw-at')
    expect(readout).to_have_text(re.compile(r"^\[2\] "))
    shown = (readout.text_content() or "").removeprefix("[2] ").replace("−", "-")
    assert float(shown) == pytest.approx(value, rel=1e-3)
    buttons.nth(2).press("Enter")
    expect(strip).to_be_hidden()


def test_heads_keys_and_layers_are_chosen_where_they_are_shown(
    page: Page, site: Callable[..., Site]
) -> None:
    fake_run(page, site())
    line(page, "out")
    page.get_by_role("button", name="2", exact=True).click()
    expect(page.get_by_label("Head", exact=True)).to_have_value("2")
    expect(page.locator('.fw-line[data-line="qkv"]')).to_contain_text("query of head 2")
    line(page, "scores")
    key = page.locator('.fw-line[data-line="scores"] tbody button').nth(3)
    word = key.text_content()
    key.click()
    expect(page.locator('.fw-line[data-line="scores"] .fw-note')).to_contain_text(f"With “{word}”")
    expect(page.locator("#gutter .on")).to_have_text("layer 6")
    page.get_by_role("button", name="Layer before").click()
    expect(page.locator(".fw-summary")).to_contain_text("through layer 5")
    expect(page.locator("#gutter .on")).to_have_text("layer 5")


def test_the_token_before_stands_beside(page: Page, site: Callable[..., Site]) -> None:
    look = fake_run(page, site())
    line(page, "add_mlp")
    assert "after the MLP, token before" not in look.csv()[0]
    page.get_by_label("compare with the token before").check()
    expect(look.source).to_contain_text("before it (grey)")
    own = look.csv()
    line(page, "add_mlp")
    play = Playground(page)
    play.core.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".fw-summary")).to_contain_text("at position")
    expect(look.panel).not_to_have_attribute("aria-busy", "true")
    before = look.csv()
    beside = [row["after the MLP, token before"] for row in own]
    assert (
        [row["after the MLP"] for row in before] == beside != [row["after the MLP"] for row in own]
    )


@pytest.mark.parametrize("width", [360, 768])
def test_the_forward_pass_fits_small_windows(
    page: Page, site: Callable[..., Site], width: int
) -> None:
    fake_run(page, site())
    line(page, "hidden")
    page.set_viewport_size({"width": width, "height": 800})
    lines = page.locator(".fw-lines")
    expect(lines).to_be_visible()
    assert Playground(page).overflow() <= 0
    assert lines.evaluate("(n) => n.scrollWidth - n.clientWidth") <= 0


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_axe_finds_nothing_in_an_open_line(
    page: Page, site: Callable[..., Site], theme: str
) -> None:
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    fake_run(page, site())
    for key in ("scores", "out", "hidden", "draw"):
        line(page, key)
    assert violations(page) == []
