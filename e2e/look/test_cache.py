"""All blocks of the KV cache: what the engine answered, when it is asked, how they are reached."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from e2e.bundled import ask_engine
from e2e.look.panel import LookPanel
from e2e.look.test_look import LOOK_AT
from e2e.look.test_looks import open_page, violations
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES, until
from gpu import InvalidRequest
from gpu.info import KvGroupInfo
from gpu.inspection.requests import CacheBlocks
from gpu.kv.state import KvState
from tests.app import fake_inspection
from tests.app.fake_engine import FakeEngine, FakeOptions

# When the page asks for the cache, on its own clock.
WATCH_QUESTIONS = """() => {
  window.askedAt = [];
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (data) {
    if (String(data).includes('"kind":"cache"')) window.askedAt.push(performance.now());
    return send.call(this, data);
  };
}"""
REST_MS = 500


def the_state() -> KvState:
    """Return the fake engine's answer."""
    return fake_inspection._kv_state(FakeEngine(FakeOptions()).info)


def state_name(state: KvState, block: int) -> str:
    owners, found = state.owners[block], state.n_found[block]
    if owners:
        return "used by one run" if owners == 1 else "shared by runs"
    if not found:
        return "free"
    return "cached, full" if found == state.block_tokens else "cached, partial"


def radio(page: Page, name: str) -> Locator:
    return page.get_by_role("radio", name=name)


def choose(page: Page, name: str) -> None:
    page.locator(".kv-views label", has_text=name).click()
    expect(radio(page, name)).to_be_checked()


def field(page: Page) -> Locator:
    return page.get_by_role("slider", name="Block of the cache")


def opened(page: Page, here: Site, **media: str) -> tuple[Playground, LookPanel]:
    """The blocks of a page on which nothing has been run."""
    play = open_page(page, here, **media)
    look = play.look.open("cache")
    choose(page, "All blocks")
    expect(field(page)).to_have_attribute("aria-valuemax", "127")
    expect(look.message).to_be_hidden()
    return play, look


def wrote(page: Page, here: Site, n: int = 20) -> Playground:
    play = open_page(page, here)
    play.set(max_tokens=n, seed=3)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    return play


# ---- the numbers -----------------------------------------------------------------------------


@pytest.mark.quick
def test_the_file_has_every_block_as_the_engine_answered(
    page: Page, site: Callable[..., Site]
) -> None:
    messages = MessageLog(page)
    _, look = opened(page, site())
    state = the_state()
    rows = look.csv()
    blocks = [row for row in rows if row["block"]]
    assert [int(row["block"]) for row in blocks] == list(range(len(state.owners)))
    assert [int(row["runs"]) for row in blocks] == list(state.owners)
    assert [int(row["tokens found"]) for row in blocks] == list(state.n_found)
    assert [int(row["used"]) for row in blocks] == list(state.used)
    first = ["" if at < 0 else str(at + 1) for at in state.first]
    assert [row["from token"] for row in blocks] == first
    names = [state_name(state, block) for block in range(len(blocks))]
    assert [row["state"] for row in blocks] == names
    sums = {row["state"]: row for row in rows if not row["block"]}
    size = messages.last("hello")["limits"]["kv_block_bytes"]
    for name in set(names):
        assert int(sums[name]["count"]) == names.count(name)
        assert int(sums[name]["bytes"]) == names.count(name) * size
    assert int(sums["prompt tokens"]["count"]) == state.prompt_tokens
    assert int(sums["prompt tokens found"]["count"]) == state.reused_tokens
    assert int(sums["copies"]["count"]) == state.copies
    assert int(sums["evictions"]["count"]) == state.evictions
    choose(page, "This run")
    expect(look.message).to_contain_text("No run yet")


@pytest.mark.quick
def test_the_lists_beside_say_the_same(page: Page, site: Callable[..., Site]) -> None:
    opened(page, site())
    state = the_state()
    names = [state_name(state, block) for block in range(len(state.owners))]
    seen = page.locator(".kv-states tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [row.querySelector('b').textContent,"
        " row.cells[1].textContent, row.cells[2].textContent])"
    )
    sizes = {3: "197 KB", 1: "65.5 KB", 122: "8.0 MB"}
    order = ["used by one run", "shared by runs", "cached, full", "cached, partial", "free"]
    assert seen == [[name, str(names.count(name)), sizes[names.count(name)]] for name in order]
    shared = page.locator(".kv-states tbody tr").nth(1)
    expect(shared.locator("small")).to_have_text("one copy saves 1 block")
    figures = page.locator(".kv-figures div")
    expect(figures.nth(0)).to_contain_text("hit rate40 of 100 prompt tokens reused, not computed")
    assert figures.locator("dd:visible").all_inner_texts() == ["40.0 %", "1", "3"]


def test_a_block_tells_the_layers_it_is_for(page: Page, site: Callable[..., Site]) -> None:
    """In a model whose groups of layers have blocks of their own; the strip counts those found."""
    groups = (KvGroupInfo(2, None), KvGroupInfo(3, 64), KvGroupInfo(3, 64))
    play = open_page(page, site(kv_groups=groups, reused=2 * 16))
    play.set(max_tokens=4)
    play.ask("Tell me a long story about the sea, the wind, a lantern and a fox " * 2)
    play.wait_tokens(4)
    play.wait_done()
    expect(page.locator("#r-kv")).to_contain_text("6 reused")
    look = play.look.open("cache")
    choose(page, "All blocks")
    expect(page.locator(".kv-summary small")).to_have_text(
        "2 for 2 layers that keep the whole text, 2 for 6 layers with a window of 64 tokens"
    )
    field(page).focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".kv-summary")).to_contain_text(
        "tokens 17 to 32 of its text, for 3 layers with a window of 64 tokens"
    )
    found = [row["group of layers"] for row in look.csv() if row["block"]]
    assert found == ["1", "2"] * 3 + [""] * (len(found) - 6)
    assert violations(page) == []


BLOCK_ROW = """() => {
  const canvas = document.querySelector(".kv-chart");
  const left = parseFloat(getComputedStyle(canvas).getPropertyValue("--gutter"));
  const y = canvas.height - 22 - 8; // below: the numbers of the tokens
  const { data } = canvas.getContext("2d").getImageData(0, y, canvas.width, 1);
  const room = canvas.clientWidth - left - 12;
  return Array.from({ length: 256 / 16 }, (_, block) => {
    const x = Math.round(left + ((16 * block + 8) / 256) * room);
    return data[4 * x + 3] > 0;
  });
}"""
"""Of a chart of 256 tokens, for each block whether it is drawn."""


def test_a_window_in_all_layers_leaves_the_blocks_behind_it(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site(kv_groups=(KvGroupInfo(8, 64),), context=256)
    play = wrote(page, here, 200)
    ids = prompt_ids(here.engine.tokenizer, messages=[Message("user", "Tell me a story")])
    n_tokens = len(ids) + 199
    first = (n_tokens - 64) // 16
    held = -(-n_tokens // 16) - first
    expect(page.locator("#r-kv")).to_contain_text(f"{held} of 64 blocks")
    play.look.open("cache")
    choose(page, "This run")
    expect(page.locator(".kv-ways .kv-head")).to_contain_text(
        f"{n_tokens} tokens so far: all layers read only the last 64."
    )
    page.evaluate(TWO_FRAMES)
    assert page.evaluate(BLOCK_ROW) == [first <= block < first + held for block in range(16)]
    choose(page, "All blocks")
    expect(page.locator(".kv-summary small")).to_contain_text("8 layers with a window of 64 tokens")


def test_a_model_without_groups_says_nothing_of_them(page: Page, site: Callable[..., Site]) -> None:
    _, look = opened(page, site())
    expect(page.locator(".kv-summary small")).to_have_count(0)
    assert {row["group of layers"] for row in look.csv()} == {""}


def test_blocks_in_host_memory_are_counted(
    page: Page, site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = msgspec.structs.replace(
        the_state(), host_blocks=40, used_host_blocks=12, stored=14, loaded=3
    )
    monkeypatch.setattr(fake_inspection, "_kv_state", lambda info, run: some)
    _, look = opened(page, site())
    figure = page.locator(".kv-figures div").nth(3)
    expect(figure.locator("dd")).to_have_text("12 of 40 blocks")
    expect(figure.locator("small")).to_have_text("918 KB copied there, 197 KB back")
    sums = {row["state"]: row["count"] for row in look.csv() if not row["block"]}
    assert sums["in host memory"] == "12"
    assert (sums["copied to host memory"], sums["copied back"]) == ("14", "3")


def test_the_table_follows_the_view(page: Page, site: Callable[..., Site]) -> None:
    wrote(page, site())
    look = Playground(page).look.open("cache")
    assert "bytes when full" in look.table()[0]
    look.panel.get_by_role("button", name="Table", exact=True).click()
    choose(page, "All blocks")
    expect(field(page)).to_have_attribute("aria-valuemax", "127")
    assert "tokens found" in look.table()[0]


# ---- the picture -----------------------------------------------------------------------------


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


# ---- when it is asked ------------------------------------------------------------------------


def asked_at(page: Page) -> list[float]:
    return list(page.evaluate("() => window.askedAt"))


def test_it_is_asked_when_the_view_opens_and_not_again(
    page: Page, site: Callable[..., Site]
) -> None:
    page.add_init_script(f"({WATCH_QUESTIONS})()")
    wrote(page, site())
    look = Playground(page).look.open("cache")
    expect(look.source).to_contain_text("counted by the engine for this run")
    assert asked_at(page) == []
    choose(page, "All blocks")
    expect(look.source).to_contain_text("Counted by the engine")
    page.keyboard.press("ArrowLeft")
    expect(radio(page, "This run")).to_be_checked()
    page.keyboard.press("ArrowRight")
    expect(look.source).to_contain_text("Counted by the engine")
    page.set_viewport_size({"width": 1200, "height": 800})
    page.wait_for_timeout(2 * REST_MS)
    assert len(asked_at(page)) == 2
    look.open("plan").open("cache")
    expect(look.source).to_contain_text("Counted by the engine")
    assert len(asked_at(page)) == 3


@pytest.mark.slow
def test_it_is_asked_twice_a_second_while_something_is_written_and_once_after(
    page: Page, site: Callable[..., Site]
) -> None:
    page.add_init_script(f"({WATCH_QUESTIONS})()")
    play, look = opened(page, site(delay=0.02))
    page.keyboard.press("Escape")
    play.set(max_tokens=150)
    play.ask()
    play.wait_tokens(2)
    assert len(asked_at(page)) == 1, "not while it is closed"
    look.open("cache")
    start = page.evaluate("() => performance.now()")
    play.wait_tokens(150)
    play.wait_done()
    end = page.evaluate("() => performance.now()")
    page.wait_for_timeout(3 * REST_MS)
    times = asked_at(page)[1:]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert min(gaps) >= REST_MS - 1, gaps
    assert len(times) >= (end - start) / 1000, "it is followed"
    assert [at for at in times if at > end + 2 * REST_MS] == [], "then it rests"
    assert len([at for at in times if at > start]) >= 3


def test_the_other_view_asks_nothing_while_something_is_written(
    page: Page, site: Callable[..., Site]
) -> None:
    page.add_init_script(f"({WATCH_QUESTIONS})()")
    play, look = opened(page, site(delay=0.01))
    choose(page, "This run")
    page.keyboard.press("Escape")
    play.set(max_tokens=80)
    play.ask()
    look.open("cache")
    play.wait_tokens(80)
    play.wait_done()
    assert len(asked_at(page)) == 1


def test_a_failed_question_is_said_and_leaves_the_other_view(
    page: Page, own_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(info: Any, run: int) -> KvState:
        raise InvalidRequest("nobody counted the blocks", "kind")

    wrote(page, own_site())
    look = Playground(page).look.open("cache")
    with monkeypatch.context() as patch:
        patch.setattr(fake_inspection, "_kv_state", fail)
        choose(page, "All blocks")
        expect(look.message).to_have_text("This could not be shown: nobody counted the blocks")
        expect(page.locator(".kv-field")).not_to_be_visible()
        choose(page, "This run")
        expect(look.message).to_be_hidden()
        expect(page.locator(".kv-chart")).to_be_visible()
        assert look.csv()[0]["layout"] == "current"
    choose(page, "All blocks")
    expect(look.message).to_be_hidden()
    words = "4 of 128 blocks in use: this answer 3, others 2."
    expect(page.locator(".kv-summary")).to_have_text(words)


@pytest.mark.slow
def test_leaving_before_the_answer_shows_the_other_view_at_once(
    page: Page, own_site: Callable[..., Site]
) -> None:
    wrote(page, own_site(ask_seconds=2.5))
    look = Playground(page).look.open("cache")
    choose(page, "All blocks")
    expect(look.panel).to_have_attribute("aria-busy", "true")
    expect(look.source).to_have_text("Computing …")
    choose(page, "This run")
    expect(look.source).to_contain_text("counted by the engine for this run", timeout=1500)
    expect(page.locator(".kv-chart")).to_be_visible()
    choose(page, "All blocks")
    # The engine answers the question that was left first.
    expect(look.source).to_contain_text("Counted by the engine", timeout=15_000)


# ---- the bundled model -----------------------------------------------------------------------


def test_a_second_turn_finds_the_first_in_the_cache(page: Page, bundled: Site) -> None:
    """Other tests may have asked the same engine before."""
    before = ask_engine(bundled, CacheBlocks()).info
    play = Playground(page, bundled).open()
    messages = play.messages
    play.set(max_tokens=40, seed=11)
    for n, text in enumerate(("Tell me a story about a fox who finds a lantern", "And then?")):
        play.ask(text)
        expect(page.locator(".answer")).to_have_count(n + 1)
        play.wait_tokens(5)
        play.wait_done()
    look = play.look.open("cache")
    choose(page, "All blocks")
    expect(look.source).to_contain_text("Counted by the engine")
    rows = look.csv()
    sums = {row["state"]: int(row["count"]) for row in rows if not row["block"]}
    prompts = [len(event["prompt"]) for event in messages.events("accepted")]
    reused = [
        event["reused"] for event in messages.events("prefill") if event["done"] == event["total"]
    ]
    assert reused[0] < prompts[0] <= reused[1], "the second prompt begins with the first"
    assert sums["prompt tokens"] - before["prompt_tokens"] == sum(prompts)
    assert sums["prompt tokens found"] - before["reused_tokens"] == sum(reused)
    rate = 100 * sums["prompt tokens found"] / sums["prompt tokens"]
    expect(page.locator(".kv-figures dd").first).to_have_text(f"{rate:.1f} %")
    answer = ask_engine(bundled, CacheBlocks())
    blocks = [row for row in rows if row["block"]]
    for column, name in (("runs", "owners"), ("tokens found", "n_found"), ("used", "used")):
        assert [int(row[column]) for row in blocks] == answer[name].tolist()
    assert sums["used by one run"] == sums["shared by runs"] == 0, "both runs ended"
    size = answer.info["block_tokens"]
    kept = sum(int(row["tokens found"]) for row in blocks)
    assert sums["cached, full"] + sums["cached, partial"] >= -(-kept // size)
    assert kept >= prompts[1], "the longer text can be found"
    assert sums["copies"] == answer.info["copies"]
    assert sums["evictions"] == answer.info["evictions"]


def test_the_blocks_of_a_run_are_read_while_it_writes(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    messages = play.messages
    play.set(max_tokens=400, seed=5, temperature=1.5)
    look = play.look.open("cache")
    choose(page, "All blocks")
    expect(page.locator(".kv-summary")).to_contain_text("0 of")
    play.prompt.evaluate("(box) => { box.value = 'Tell me a long story'; }")
    page.evaluate("() => document.getElementById('composer').requestSubmit()")
    read = page.locator(".kv-states tbody td").first
    most = until(page, lambda: int(read.inner_text()), "a block that is read")
    play.wait_done()
    assert 1 <= most <= messages.events("token")[-1]["kv_blocks"]
    expect(read).to_have_text("0")
    expect(look.source).to_contain_text("Counted by the engine")


@pytest.mark.quick
def test_blocks_name_the_runs_of_this_page(page: Page, site: Callable[..., Site]) -> None:
    """Of the newest run are blocks 0 to 2; it shares block 0 with a run of another client."""
    play = wrote(page, site())
    look = play.look.open("cache")
    choose(page, "All blocks")
    says = page.locator(".kv-summary")
    expect(says).to_have_text("4 of 128 blocks in use: this answer 3, others 2.")
    field(page).focus()
    both = "this answer, a run of another client"
    expect(says).to_contain_text(f"block 0 shared by {both}, tokens 1 to 16")
    page.keyboard.press("ArrowRight")
    expect(says).to_contain_text("block 1 used by this answer, tokens 17 to 32")
    owners = [row["owners"] for row in look.csv() if row["block"]]
    assert owners[:5] == [both, "this answer", "this answer", "a run of another client", ""]
