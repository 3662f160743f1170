"""All blocks of the KV cache, as the engine answered."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from playwright.sync_api import Page, expect

from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from e2e.bundled import ask_engine
from e2e.look.cache_view import choose, field, opened, state_name, the_state, wrote
from e2e.look.test_looks import open_page, violations
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES, until
from gpu.info import KvGroupInfo
from gpu.inspection.requests import CacheBlocks
from tests.app import fake_inspection


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
    expect(figures.nth(0)).to_contain_text(
        "prefix caching40 of 100 prompt tokens reused, not computed"
    )
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
    shown = page.locator(".kv-figures dd").first.inner_text().removesuffix(" %")
    assert float(shown) == pytest.approx(rate, abs=0.05 + 1e-9)  # 81.25 may become 81.2 or 81.3
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
