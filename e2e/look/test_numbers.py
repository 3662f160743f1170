"""Numbers of the instruments: those of the engine's events, and nothing else."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.look.panel import LookPanel
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions
from tests.app.fake_plan import fake_plan
from tests.app.fake_tokenizer import FakeTokenizer

ASK = "Tell me a story about a fox"
N = 40
# When the server passed on each token and chunk of the prompt, and when the page received it: ms.
CLOCKS = """async () => {
  const { state } = await import("/static/js/state.js");
  const { events, sentAt } = state.turns.at(-1).answers.at(-1).segments.at(-1);
  const times = (type) =>
    events
      .filter((event) => event.type === type)
      .map(({ passedAt, receivedAt }) => [passedAt, receivedAt - sentAt]);
  return { token: times("token"), prefill: times("prefill") };
}"""


@pytest.fixture
def run(page: Page, site: Callable[..., Site]) -> tuple[Playground, LookPanel, MessageLog]:
    """A page that wrote `N` tokens, and all that came over its line."""
    play = Playground(page, site()).open()
    messages = play.messages
    play.set(max_tokens=N, seed=7)
    play.ask(ASK)
    play.wait_tokens(N)
    play.wait_done()
    return play, play.look, messages


def nearest_rank(values: list[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def milliseconds(text: str) -> float:
    """Read a duration as the page writes it."""
    value, unit = text.split()
    return float(value) * {"ms": 1, "s": 1000}[unit]


@pytest.mark.quick
def test_the_timeline_has_the_times_of_every_token(
    run: tuple[Playground, LookPanel, MessageLog],
) -> None:
    _, look, messages = run
    look.open("timeline")
    events = messages.events("token")
    rows = [row for row in look.csv() if row["token"]]
    assert [int(row["token"]) for row in rows] == list(range(1, N + 1))
    assert [row["text"] for row in rows] == [event["text"] for event in events]
    for row, event in zip(rows, events, strict=True):
        times = event["times"]
        assert float(row["length, ms"]) == times["interval"]
        assert float(row["GPU, ms"]) == times["gpu"]
        assert float(row["encode, ms"]) == times["encode"]
        assert float(row["wait, ms"]) == times["wait"]
        assert float(row["read, ms"]) == times["read"]
    assert min(float(row["draw, ms"]) for row in rows) >= 0


def test_the_timeline_aligns_clocks_by_the_fastest_message(
    run: tuple[Playground, LookPanel, MessageLog],
) -> None:
    """Of all messages, those of the prompt's chunks too, the fastest has no delay."""
    play, look, messages = run
    look.open("timeline")
    rows = [row for row in look.csv() if row["token"]]
    written = itertools.accumulate(event["times"]["interval"] for event in messages.events("token"))
    queue = messages.events("done")[0]["timings"]["queue_ms"]
    engine = [*written, *(queue + event["ms"] for event in messages.events("prefill"))]
    clocks = play.page.evaluate(CLOCKS)
    server, page = zip(*clocks["token"], *clocks["prefill"], strict=True)
    for part, earlier, later in (("pipe, ms", engine, server), ("socket, ms", server, page)):
        delays = [b - a for a, b in zip(earlier, later, strict=True)]
        expected = [delay - max(0.0, min(delays)) for delay in delays[:N]]
        assert [float(row[part]) for row in rows] == pytest.approx(expected, abs=1e-6), part


def test_the_timeline_has_the_parts_of_the_request_without_gaps(
    run: tuple[Playground, LookPanel, MessageLog],
) -> None:
    _, look, messages = run
    look.open("timeline")
    rows = look.csv()
    timings = messages.events("done")[0]["timings"]
    length = {row["part"]: float(row["length, ms"]) for row in rows if not row["token"]}
    parts = [row for row in rows if not row["token"] and "GPU" not in row["part"]]
    first = next(message for message in messages.received if message["type"] == "event")
    assert length["template"] == pytest.approx(first["prepared"])
    assert [row["part"] for row in parts][-3:] == ["prefill", "first sample", "decode"]
    at = 0.0
    for row in parts:
        assert float(row["from, ms"]) == pytest.approx(at, abs=1e-6)
        at += float(row["length, ms"])
    intervals = [event["times"]["interval"] for event in messages.events("token")]
    assert length["decode"] == pytest.approx(sum(intervals[1:]))
    prefill = messages.events("prefill")
    assert length["prefill"] == pytest.approx(prefill[-1]["ms"])
    assert length.get("queue", 0.0) == pytest.approx(timings["queue_ms"])
    on_gpu = [row for row in rows if row["part"] == "prefill on the GPU"]
    assert len(on_gpu) == len(prefill)


def test_the_timeline_has_what_a_run_waited_by_its_pace(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play(delay=0.002)
    here.set(max_tokens=3)
    page.get_by_label("Tokens a second").select_option("by step")
    here.ask()
    for n in range(1, 4):
        expect(here.stats).to_contain_text(f"Paused before token {n}")
        expect(page.locator("#tok-word")).to_have_text("Next token")  # the run waits now
        here.step()
    here.wait_done()
    here.tokens.nth(1).click()
    look = here.look.open("timeline")
    expect(look.panel.locator(".tl-readout")).to_contain_text("waiting (pace)")
    times = [event["times"] for event in here.messages.events("token")]
    rows = [row for row in look.csv() if row["token"]]
    assert [float(row["waiting (pace), ms"]) for row in rows] == [t["paced"] for t in times]
    lengths = [t["interval"] - t["paced"] for t in times]
    assert [float(row["length, ms"]) for row in rows] == pytest.approx(lengths)


def test_the_figures_of_the_timeline_are_those_of_its_intervals(
    run: tuple[Playground, LookPanel, MessageLog],
) -> None:
    _, look, messages = run
    look.open("timeline")
    intervals = [event["times"]["interval"] for event in messages.events("token")][1:]
    timings = messages.events("done")[0]["timings"]
    expected = {
        "TTFT": timings["ttft_ms"],
        "TPOT": timings["tpot_ms"],
        "p50": nearest_rank(intervals, 0.5),
        "p95": nearest_rank(intervals, 0.95),
    }
    figures = look.panel.locator(".tl-figures")
    for name, value in expected.items():
        row = figures.locator("div").filter(has=look.page.get_by_text(name, exact=True))
        assert milliseconds(row.locator("dd").inner_text()) == pytest.approx(value, abs=0.51)


@pytest.mark.quick
def test_the_roofline_has_the_costs_of_the_plan_and_the_peaks_of_the_device(
    run: tuple[Playground, LookPanel, MessageLog],
) -> None:
    _, look, messages = run
    look.open("timeline")
    assert {row["operations"] for row in look.csv()} == {""}, "nothing is asked before it is wanted"
    look.panel.get_by_role("button", name="Measure peak rates").click()
    expect(look.panel.locator(".tl-roof .sub")).to_be_hidden()
    rows = [row for row in look.csv() if row["token"]]
    info = FakeEngine(FakeOptions()).info
    n_prompt = len(messages.events("accepted")[0]["prompt"])
    assert rows[0]["operations"] == "", "the first token came out of the prompt's step"
    first, last = (fake_plan(info, 1, n_prompt + i) for i in (0, N - 2))
    assert int(rows[1]["operations"]) == first["flops"]
    assert int(rows[1]["bytes"]) == first["n_bytes"]
    assert int(rows[-1]["operations"]) == last["flops"]
    assert int(rows[-1]["bytes"]) == last["n_bytes"]
    middle = fake_plan(info, 1, n_prompt + 9)
    assert int(rows[10]["operations"]) == pytest.approx(middle["flops"], rel=1e-3)


@pytest.mark.quick
def test_the_cache_counts_what_the_engine_counted(
    run: tuple[Playground, LookPanel, MessageLog],
) -> None:
    _, look, messages = run
    look.open("cache")
    hello = messages.last("hello")
    limits, model = hello["limits"], hello["model"]
    kept = len(messages.events("accepted")[0]["prompt"]) + N - 1  # the last one was not fed back
    per_token = limits["kv_block_bytes"] / limits["block_tokens"]
    rows = {row["layout"]: row for row in look.csv()}
    here = rows["current"]
    assert float(here["bytes now"]) == kept * per_token
    assert float(here["bytes when full"]) == limits["context"] * per_token
    grouped = model["n_heads"] / model["n_kv_heads"]
    assert float(rows["MHA"]["bytes now"]) == kept * per_token * grouped
    assert float(rows["MQA"]["bytes now"]) == kept * per_token / model["n_kv_heads"]
    assert here["how"].endswith("f16")
    assert list(rows)[3:6] == ["q8", "q8q4", "rotated4"]
    for name in list(rows)[3:6]:
        share = model["kv_formats"][name] / limits["kv_block_bytes"]
        assert float(rows[name]["bytes now"]) == kept * per_token * share
        assert rows[name]["how"] == f"{16 * share:g} bits per number"
    window = limits["context"] // 4
    assert rows["sliding window"]["how"] == f"the last {window} tokens"
    assert float(rows["sliding window"]["bytes now"]) == min(kept, window) * per_token
    assert float(rows["sliding window"]["bytes when full"]) == window * per_token


def test_the_list_of_the_cache_says_what_its_table_says(
    run: tuple[Playground, LookPanel, MessageLog],
) -> None:
    _, look, _ = run
    look.open("cache")
    seen = look.panel.locator(".kv-ways tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.children].map((c) => c.innerText))"
    )
    table = look.table()
    assert len(seen) == len(table) + 1  # its head
    units = {"B": 1, "KB": 1e3, "MB": 1e6}
    for (name, _, now, full), row in zip(seen[1:], table, strict=True):
        assert name.split("\n") == [row["layout"], row["how"]]
        for text, column in ((now, "bytes now"), (full, "bytes when full")):
            value, unit = text.split()
            assert float(value) * units[unit] == pytest.approx(number(row[column]), rel=0.06)


def test_a_prompt_is_cut_as_the_run_read_it(run: tuple[Playground, LookPanel, MessageLog]) -> None:
    play, look, messages = run
    look.open("tokens")
    prompt = messages.events("accepted")[0]["prompt"]
    expect(look.source).to_contain_text(f"the same {len(prompt)} ids as in this run")
    own = look.panel.locator(".tk-row:not(.other) .pc")
    assert own.locator(".id").all_inner_texts() == [str(token["id"]) for token in prompt]
    roles = look.panel.locator(".tk-row:not(.other) h3").all_inner_texts()
    assert roles == ["template", "user", "template"]
    typed = look.panel.locator("#look-draft")
    expect(typed).to_have_value(ASK)
    own.nth(1).hover()
    text = re.compile(f"^prompt 2, “{re.escape(prompt[1]['text'])}”")
    expect(play.core).to_have_attribute("aria-valuetext", text)


@pytest.mark.quick
def test_tokens_and_their_counts_are_those_of_the_tokenizers(
    run: tuple[Playground, LookPanel, MessageLog],
) -> None:
    _, look, messages = run
    look.open("tokens")
    expect(look.source).to_contain_text("Recomputed")
    answer: dict[str, Any] = messages.last("tokenized")
    rows = look.csv()
    cut = [row for row in rows if row["tokenizer"] == "fake-story"]
    other = [row for row in rows if row["tokenizer"] == answer["compare"]["name"]]
    assert len(cut) + len(other) == len(rows)
    plain = FakeTokenizer().encode(ASK, bos=False)
    assert [int(row["id"]) for row in cut if row["role"] == "user"] == plain
    assert bytes.fromhex("".join(row["bytes"] for row in cut if row["role"])) == ASK.encode()
    assert bytes.fromhex("".join(row["bytes"] for row in other)) == ASK.encode()
    counts = look.panel.locator(".tk-counts div").all_inner_texts()
    said = dict(text.split("\n") for text in counts)
    assert said["tokens, with the template"] == str(len(cut))
    words = len(ASK.split())
    assert said["tokens, text alone"] == (f"{len(plain)}, {len(plain) / words:.2f} per word")
    assert said["words"] == str(words)
    assert said["characters, bytes"] == f"{len(ASK)}, {len(ASK.encode())}"


def test_a_draft_is_cut_as_it_is_typed_and_sent_from_the_panel(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, site()).open()
    play.set(max_tokens=5)
    look = play.look.open("tokens")
    field = look.panel.locator("#look-draft")
    expect(look.panel.locator(".tk-detail")).to_contain_text("Type a prompt")
    field.fill("Über")
    pieces = look.panel.locator(".tk-row", has_text="user").locator(".pc")
    expect(pieces.first).to_be_visible()
    first = pieces.count()
    expect(play.prompt).to_have_value("Über")
    field.fill("Über den Wolken")
    expect(pieces).not_to_have_count(first)
    pieces.first.focus()
    page.keyboard.press("End")
    expect(look.panel.locator(".tk-detail")).to_contain_text("byte")
    field.press("Enter")
    play.wait_tokens(5)
    expect(look.source).to_contain_text("ids as in this run")
    expect(look.panel.get_by_role("radio", name="Last request")).to_be_checked()
    expect(look.panel).to_be_visible()


def test_pointing_at_the_cache_looks_at_that_token(
    run: tuple[Playground, LookPanel, MessageLog],
) -> None:
    play, look, messages = run
    look.open("cache")
    chart = look.panel.locator(".kv-chart")
    box = chart.bounding_box()
    assert box is not None
    chart.hover(position={"x": 100, "y": box["height"] / 2})
    expect(play.core).to_have_attribute("aria-valuetext", re.compile("^prompt "))
    chart.click(position={"x": 100, "y": box["height"] / 2})
    play.core.focus()
    look.page.keyboard.press("End")
    expect(play.core).to_have_attribute("aria-valuenow", str(N))
    assert messages.events("token")


def test_one_is_not_many(play: Callable[..., Playground]) -> None:
    here = play(n_heads=4, n_kv_heads=1, n_slots=1)
    here.write(n=4)
    rows = {row["layout"]: row for row in here.look.open("cache").csv()}
    assert rows["current"]["how"] == "MQA: 1 KV head for 4, f16"
    here.page.get_by_test_id("about-open").click()
    facts = here.page.get_by_role("dialog")
    expect(facts).to_contain_text("1 run; queue of 16")
    expect(facts).to_contain_text("4 heads of")
