"""The layer stack: what is told of a token's layers is what the engine measured, at every token."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES, until
from tests.app.fake_sampler import routes, stats

NUMBERS = ("residual", "attention", "mlp", "attention_cosine", "mlp_cosine")

# Module state of the page, which is the same object for whoever imports it.
TOLD = """async (index) => {
  const { view } = await import("/static/js/view.js");
  const { id, stats } = view.answer.tokens[index];
  return { id, stats };
}"""

# Positions of all tokens of the answer, its prompt's too, that were captured. The prompt's last is
# told twice: it also chose the first token.
MEASURED = """async () => {
  const { view } = await import("/static/js/view.js");
  const [{ promptStats }] = view.answer.segments;
  const all = [...promptStats, ...view.answer.tokens.map(({ stats }) => stats)];
  return [...new Set(all.filter(Boolean).map(({ position }) => position))];
}"""

# [colour on the plate, colour of the map] in the middle of each layer's MLP row of a written token.
COLOURS = """async (index) => {
  const [{ view, metric }, { core }, { grid }, { partEdges }, { scales }, { shade }, { state }] =
    await Promise.all(["view", "core-sample/core-sample", "core-sample/grid", "core-sample/column",
                       "turns/metrics", "ui/palette", "state"]
      .map((name) => import(`/static/js/${name}.js`)));
  const canvas = document.querySelector("#sample");
  const x = Math.round((core.x0 + (index + 0.4) * core.column - core.scroll) * core.ratio);
  if (x < 0 || x >= canvas.width) return null;
  const copy = new OffscreenCanvas(1, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, -x, 0);
  return view.answer.tokens[index].stats.layers.map((layer, i) => {
    const [top, bottom] = partEdges(i, view.parts - 1);
    const y = Math.round(((top + bottom) / 2) * core.ratio);
    const [r, g, b] = copy.getImageData(0, y, 1, 1).data;
    const value = metric().value(layer, view.parts - 1, view.parts);
    return [`rgb(${r},${g},${b})`, shade(scales[state.metric].at(value))];
  });
}"""

PIN = """async (index) => {
  const { pin } = await import("/static/js/view.js");
  pin(index);
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""

# Of a cell of the first layer: the lines of it that have ink, counted from its lower edge.
INKED = """(column) => {
  const canvas = document.querySelector("#bars");
  const origin = canvas.getBoundingClientRect();
  const row = document.querySelector("#lrows tr:not(.end)");
  const cell = row.children[column].getBoundingClientRect();
  const scale = canvas.height / origin.height;
  const [x, y, width, height] = [
    cell.left - origin.left, cell.top - origin.top, cell.width, cell.height,
  ].map((length) => Math.round(length * scale));
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, -x, -y);
  const { data } = copy.getImageData(0, 0, width, height);
  const lines = Array.from({ length: height }, (_, i) => height - i).filter((line) => {
    const at = (height - line) * width * 4;
    return data.subarray(at, at + width * 4).some((byte) => byte > 0);
  });
  return { lines: lines.map((line) => line / scale), height: height / scale };
}"""
MLP, ENTROPY = 2, 3


def written(play: Playground, n: int) -> None:
    play.set(max_tokens=n)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()


def figure(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


@pytest.mark.quick
def test_the_focused_layer_is_told_with_every_head(page: Page, site: Callable[..., Site]) -> None:
    play = Playground(page, site()).open()
    written(play, 12)
    for token, layer in [(2, 0), (11, 7), (5, 4)]:
        play.tokens.nth(token).click()
        page.locator(f'#lrows tr[data-layer="{layer}"]').click()
        told = page.evaluate(TOLD, token)
        position = told["stats"]["position"]
        measured = stats(position, told["id"], 8, 8, 1).layers[layer]
        for name in NUMBERS:
            assert told["stats"]["layers"][layer][name] == pytest.approx(getattr(measured, name))
        foot = page.locator("#layer-line")
        size = {"attention": measured.attention, "MLP": measured.mlp}
        cosine = {"attention": measured.attention_cosine, "MLP": measured.mlp_cosine}
        time = {"attention": measured.attention_ms, "MLP": measured.mlp_ms}
        expect(foot.locator("b")).to_have_text(f"layer {layer}")
        for part, words in zip(size, foot.locator("span").all(), strict=True):
            ms = time[part]
            assert ms is not None
            took = f"{round(1000 * ms)} µs" if ms < 1 else f"{ms:.1f} ms"
            expect(words).to_have_text(
                f"{part} {size[part] / measured.residual:.2f} cos {figure(cosine[part])} {took}"
            )
        bits = ", ".join(f"{value:.1f}" for value in measured.entropy)
        expect(page.get_by_role("img", name="Attention entropy of each head")).to_have_attribute(
            "aria-label", f"Attention entropy of each head, in bits: {bits}"
        )


def attention_column(page: Page) -> list[str]:
    return page.locator("#lrows tr[data-layer] td:nth-child(2)").all_inner_texts()


def test_rows_too_low_for_words_have_numbers_for_screen_readers(
    page: Page, site: Callable[..., Site]
) -> None:
    """They take turns while a text is written, and at rest are all those of the focused token."""
    play = Playground(page, site(n_layers=40, delay=0.02)).open()
    play.set(max_tokens=200)
    play.ask()
    play.wait_tokens(30)
    assert "dense" in (page.locator(".ltab").get_attribute("class") or "")
    until(page, lambda: all(attention_column(page)), "a number in every row")
    page.keyboard.press("Escape")
    play.wait_done()
    layers = page.evaluate(TOLD, play.tokens.count() - 1)["stats"]["layers"]
    shown = [f"{layer['attention'] / layer['residual']:.2f}" for layer in reversed(layers)]
    until(page, lambda: attention_column(page) == shown, "the numbers of the last token")


def test_the_name_of_the_first_layer_gives_way_to_that_of_the_embedding(
    page: Page, site: Callable[..., Site]
) -> None:
    Playground(page, site(n_layers=40, delay=0.02)).open()
    names = page.locator("#gutter span")
    expect(names.filter(has_text="embed")).to_be_visible()
    tops = names.evaluate_all("(all) => all.map((name) => name.getBoundingClientRect().top)")
    gaps = [below - above for above, below in pairwise(sorted(tops))]
    assert min(gaps) >= 13, gaps


def test_the_experts_of_a_token_and_of_the_run_are_told(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, site(n_experts=6)).open()
    written(play, 12)
    play.tokens.nth(4).click()
    page.locator('#lrows tr[data-layer="5"]').click()
    told = page.evaluate(TOLD, 4)
    route = next(route for route in routes(told["stats"]["position"], 8, 6) if route.layer == 5)
    (one, other), gates = route.experts, route.gates
    line = page.locator("#experts-line span")
    expect(line.first).to_have_text(f"expert {one} (gate {gates[0]:.2f}), {other} ({gates[1]:.2f})")

    positions = page.evaluate(MEASURED)
    assert len(positions) > 20, "the prompt counts too"
    chosen = [e for at in positions for r in routes(at, 8, 6) if r.layer == 5 for e in r.experts]
    shares = np.bincount(chosen, minlength=6) / len(chosen)
    some = shares[shares > 0]
    evenness = -np.sum(some * np.log(some)) / np.log(6)
    expect(line.last).to_have_text(
        f"{len(some)} of 6 experts used by {len(positions)} tokens, evenness {evenness:.2f}"
    )
    page.locator('#lrows tr[data-layer="0"]').click()
    expect(page.locator("#experts-line")).to_have_text("dense layer: one MLP, no experts")


def test_a_layer_keeps_its_place_under_the_pointer(page: Page, site: Callable[..., Site]) -> None:
    """Words about a layer without experts are shorter: were their place lower as well, the table
    would move, another row come under the pointer, its words move it back, and so on."""
    play = Playground(page, site(n_experts=6)).open()
    written(play, 12)
    rows = page.locator("#lrows tr[data-layer]")
    places = [row.bounding_box() for row in rows.all()]
    for row in rows.all():
        row.hover()
        page.evaluate(TWO_FRAMES)
        assert [row.bounding_box() for row in rows.all()] == places
        expect(page.locator("#layer-line b")).to_have_text(
            f"layer {row.get_attribute('data-layer')}"
        )


def test_the_cosine_is_a_colour_of_the_core(page: Page, site: Callable[..., Site]) -> None:
    play = Playground(page, site()).open()
    written(play, 20)
    page.keyboard.press("Escape")
    page.locator("#plot").focus()
    page.keyboard.press("5")
    expect(page.get_by_role("radio", name="Cosine")).to_be_checked()
    expect(page.locator("#lo")).to_have_text("−0.75")
    for index in (0, 7, 18):
        colours = until(page, lambda index=index: page.evaluate(COLOURS, index), "a column")
        assert all(drawn == map_ for drawn, map_ in colours), colours
    assert len({drawn for drawn, _ in colours}) > 4, "layers differ"
    play.tokens.nth(3).click()
    layer = page.evaluate(TOLD, 3)["stats"]["layers"][6]
    expect(page.locator("#val")).to_have_text(f"layer 6 MLP {figure(layer['mlp_cosine'])}")


FORGET = """async () => {
  const { view } = await import("/static/js/view.js");
  for (const { stats } of view.answer.tokens)
    for (const layer of stats.layers) delete layer.attention_cosine;
}"""


def test_a_run_from_before_cosines_says_so(page: Page, site: Callable[..., Site]) -> None:
    """Replay files of an older version have no cosines."""
    play = Playground(page, site()).open()
    written(play, 4)
    page.evaluate(FORGET)
    page.get_by_text("Cosine", exact=True).click()
    expect(page.locator("#blank")).to_contain_text("before cosines were measured")
    play.tokens.nth(1).click()
    expect(page.locator("#layer-line span").first).not_to_contain_text("cos")


@pytest.mark.parametrize("columns", ["ordinary", pytest.param("narrowest", marks=pytest.mark.slow)])
def test_all_of_a_long_run_can_be_scrolled_back(
    page: Page, site: Callable[..., Site], columns: str
) -> None:
    """Every token has its column wherever the plate is scrolled to, in the colours measured."""
    # Not faster: a page that falls behind gets tokens without what was measured.
    play = Playground(page, site(delay=0.006, context=1024)).open()
    written(play, 700)
    if columns == "narrowest":
        for _ in range(5):
            page.get_by_role("button", name="Narrower columns").click()
    for index in (0, 1, 130, 400, 642, 698):
        play.page.evaluate(PIN, index)
        colours = until(page, lambda index=index: page.evaluate(COLOURS, index), f"token {index}")
        assert all(drawn == map_ for drawn, map_ in colours), (index, colours)
        measured = page.evaluate(TOLD, index)["stats"]["layers"][7]
        expect(page.locator("#lrows tr").nth(1).locator("td").first).to_have_text(
            f"{measured['attention'] / measured['residual']:.2f}"
        )


def inked(page: Page, column: int) -> Any:
    return page.evaluate(INKED, column)


def test_the_angle_stands_clear_of_the_bar_and_marks_rise_above_it(
    page: Page, site: Callable[..., Site]
) -> None:
    page.set_viewport_size({"width": 1440, "height": 1000})
    play = Playground(page, site(delay=0.002)).open()
    play.ask()
    play.wait_done()
    page.wait_for_function(f"() => ({INKED})({MLP}).lines.length > 0")
    angle, marks = inked(page, MLP), inked(page, ENTROPY)
    assert angle["height"] >= 24, "the rows of few layers are high"
    lines = angle["lines"]
    assert max(lines) - min(lines) + 1 > len(lines), "blank lines between the angle and the bar"
    assert max(marks["lines"]) - min(marks["lines"]) > 4, "bars have three lines"
