"""The grid of the KV cache: its picture, and blocks by keyboard and pointer."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.look.cache_view import choose, field, opened, radio
from e2e.look.test_look import LOOK_AT
from e2e.look.test_looks import open_page, violations
from e2e.site import Site


def test_the_grid_shows_what_each_block_is(page: Page, site: Callable[..., Site]) -> None:
    """The page has run nothing, so private blocks are those of other clients."""
    opened(page, site())
    seen = page.evaluate(
        """async () => {
          const { layOut } = await import("/static/js/look/cache/grid.js");
          const { palette } = await import("/static/js/ui/palette.js");
          const box = document.querySelector(".kv-blocks");
          const canvas = box.querySelector("canvas");
          const left = parseFloat(getComputedStyle(canvas).getPropertyValue("--gutter"));
          const places = layOut(128, box.clientWidth - left - 12, box.clientHeight - 2);
          const { width, height } = canvas;
          const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
          const names = Object.entries(palette).filter(([, colour]) => colour.at)
            .map(([name, colour]) => [name, String(colour).match(/\\d+/g)?.slice(0, 3).join()]);
          const at = (i, share) => {
            const x = left + (i % places.columns) * places.pitch + share * places.side;
            const y = 2 + Math.floor(i / places.columns) * places.pitch + 4;
            const start = 4 * (width * y + Math.round(x));
            const [r, g, b, a] = data.slice(start, start + 4);
            if (a < 255) return a ? "tint" : "clear";
            return names.find(([, colour]) => colour === [r, g, b].join())?.[0];
          };
          return [0, 1, 3, 4, 5, 6, 127].map((i) => [at(i, 0.2), at(i, 0.8)]);
        }"""
    )
    solid = [[name, name] for name in ("ink", "data-2", "data-2", "tint")]
    assert seen == [*solid, ["tint", "clear"], ["line", "line"], ["line", "line"]]


def test_thousands_of_blocks_are_read_and_drawn_in_time(
    page: Page, site: Callable[..., Site]
) -> None:
    open_page(page, site())
    times = page.evaluate(
        """async () => {
          const { readPool } = await import("/static/js/look/cache/blocks.js");
          const { layOut, paintBlocks } = await import("/static/js/look/cache/grid.js");
          const n = 8192;
          const of = (Kind, value) => ({ values: Kind.from({ length: n }, (_, i) => value(i)) });
          const arrays = {
            owners: of(Uint32Array, (i) => i % 4),
            n_found: of(Uint32Array, (i) => i % 17),
            first: of(Float32Array, (i) => 16 * (i % 9)),
            used: of(Uint32Array, (i) => (i * 2654435761) % n),
            runs: { values: Uint32Array.of(7, 8) },
            n_run_blocks: { values: Uint32Array.of(n / 2, n / 2) },
            run_blocks: of(Uint32Array, (i) => i),
          };
          const names = new Map([[7, "this answer"]]);
          const info = { block_tokens: 16, prompt_tokens: 0, reused_tokens: 0 };
          return Array.from({ length: 9 }, () => {
            const canvas = document.createElement("canvas");
            Object.assign(canvas, { width: 640, height: 300 });
            const context = canvas.getContext("2d");
            const start = performance.now();
            const pool = readPool({ arrays, info }, { kv_block_bytes: 65536 }, names);
            paintBlocks(context, pool, layOut(n, 640, 300), 0, 0);
            context.getImageData(0, 0, 1, 1); // waits for what was drawn
            return performance.now() - start;
          });
        }"""
    )
    assert min(times) < 50, times


def test_no_block_is_lost_at_any_size(page: Page, site: Callable[..., Site]) -> None:
    open_page(page, site())
    found = page.evaluate(
        """async () => {
          const { layOut } = await import("/static/js/look/cache/grid.js");
          const sizes = [[1, 5, 5], [7, 300, 200], [128, 524, 260], [8192, 288, 180]];
          return sizes.map(([n, width, height]) => {
            return { n, width, height, ...layOut(n, width, height) };
          });
        }"""
    )
    for places in found:
        assert places["columns"] * places["rows"] >= places["n"]
        assert places["columns"] * (places["rows"] - 1) < places["n"], "no row is empty"
        assert places["columns"] == 1 or places["columns"] * places["pitch"] <= places["width"]
        assert places["rows"] * places["pitch"] <= places["height"] or places["pitch"] == 4
        assert 0 < places["side"] < places["pitch"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_picture_of_the_blocks_is_saved(
    page: Page, site: Callable[..., Site], theme: str
) -> None:
    _, look = opened(page, site(), color_scheme=theme)
    page.wait_for_timeout(100)
    picture = page.evaluate(LOOK_AT, base64.b64encode(look.save("PNG")).decode())
    assert picture["width"] > 1000
    assert (sum(picture["ground"]) > 600) == (theme == "light")
    assert 0.1 < picture["painted"] < 0.6
    assert picture["colours"] > 50


# ---- looking ---------------------------------------------------------------------------------


def test_blocks_by_keyboard(page: Page, site: Callable[..., Site]) -> None:
    opened(page, site())
    says, mark = page.locator(".kv-summary"), page.locator(".kv-mark")
    expect(says).to_have_text("4 of 128 blocks in use: others 4.")
    expect(mark).to_be_hidden()
    assert page.locator(".kv-blocks [tabindex]").count() == 1
    radio(page, "All blocks").focus()
    page.keyboard.press("Tab")
    expect(field(page)).to_be_focused()
    expect(mark).to_be_visible()
    first = (
        "block 0: shared by 2 runs of other clients, tokens 1 to 16 of their texts; "
        "most recently used of 6"
    )
    expect(field(page)).to_have_attribute("aria-valuetext", first)
    page.keyboard.press("ArrowLeft")
    expect(field(page)).to_have_attribute("aria-valuenow", "0")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    third = "block 3 used by a run of another client, tokens 49 to 52 of its text"
    expect(says).to_contain_text(third)
    page.keyboard.press("ArrowRight")
    expect(says).to_contain_text("block 4 cached, full, tokens 1 to 16 of its text")
    expect(says).to_contain_text("5th most recently used of 6; 2nd of 2 to be evicted")
    page.keyboard.press("ArrowRight")
    expect(says).to_contain_text("block 5 cached, partial, tokens 17 to 23 of its text")
    expect(says).to_contain_text("6th most recently used of 6; 1st of 2 to be evicted")
    below = int(field(page).get_attribute("aria-valuenow") or "")
    page.keyboard.press("ArrowDown")
    columns = int(field(page).get_attribute("aria-valuenow") or "") - below
    assert columns % 8 == 0
    assert columns > 0
    expect(says).to_have_text(f"block {5 + columns} freenever used")
    page.keyboard.press("End")
    expect(field(page)).to_have_attribute("aria-valuenow", "127")
    page.keyboard.press("ArrowDown")
    expect(field(page)).to_have_attribute("aria-valuenow", "127")
    page.keyboard.press("Home")
    expect(field(page)).to_have_attribute("aria-valuetext", first)
    page.keyboard.press("Tab")
    expect(mark).to_be_hidden()


def test_blocks_by_pointer(page: Page, site: Callable[..., Site]) -> None:
    opened(page, site())
    field(page).focus()
    page.keyboard.press("ArrowRight")
    mark = page.locator(".kv-mark").bounding_box()
    says = page.locator(".kv-summary")
    expect(says).to_contain_text("block 1 ")
    assert mark is not None
    page.keyboard.press("End")
    middle = (mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    page.mouse.move(*middle)
    expect(says).to_contain_text(
        "block 1 used by a run of another client, tokens 17 to 32 of its text"
    )
    assert page.locator(".kv-mark").bounding_box() == mark
    page.mouse.move(5, 5)
    expect(says).to_contain_text("block 127 ")
    page.mouse.click(*middle)
    expect(field(page)).to_have_attribute("aria-valuenow", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theme", "size"),
    [
        ("light", (360, 640)),
        ("dark", (1440, 900)),
        ("light", (1440, 900)),
        ("dark", (900, 800)),
    ],
)
def test_axe_finds_nothing_in_the_blocks(
    page: Page, site: Callable[..., Site], theme: str, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    play = open_page(page, site(), color_scheme=theme)
    play.ask()
    play.wait_tokens(20)
    page.keyboard.press("Escape")
    play.wait_done()
    look = play.look.open("cache")
    choose(page, "All blocks")
    expect(field(page)).to_have_attribute("aria-valuemax", "127")
    assert violations(page) == []
    assert play.overflow() <= 0
    wide = "(node) => node.scrollWidth - node.clientWidth"
    assert page.locator(".instrument.cache").evaluate(wide) <= 0
    look.table()
    assert violations(page) == [], "as a table"
