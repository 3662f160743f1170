"""Measurements in the page have a bound, and the oldest are summarised first."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import CDPSession, Page, expect

from e2e.playground import Playground
from e2e.site import Site, fake_site
from e2e.waiting import until

# A Retention of `bytes` that is told of runs: [[tokens, layers, heads] …]. Numbers of token i of
# run r are i (and r), so that means can be checked. Returns what became of every token.
RUNS = """async ([bytes, recent, runs]) => {
  const { Retention } = await import("/static/js/turns/retention.js");
  const retention = new Retention(bytes, recent);
  const events = [];
  const peaks = [];
  runs.forEach(([tokens, layers, heads], r) => {
    const segment = { r };
    for (let i = 0; i < tokens; i += 1) {
      const layer = () => ({
        residual: i, attention: 2 * i, mlp: r, attention_cosine: -0.5, mlp_cosine: 0.25,
        entropy: Array.from({ length: heads }, (_, h) => i + h), attention_ms: null, mlp_ms: null,
      });
      const stats = { position: i, embedding: i, layers: Array.from({ length: layers }, layer) };
      const candidates = Array.from({ length: 20 }, (_, c) => ({ id: c, before: 0.1 }));
      const event = { type: "token", id: i % 20, stats, candidates };
      events.push({ r, i, event });
      retention.record(segment, event);
      peaks.push(retention.usage.bytes);
    }
  });
  return {
    usage: retention.usage,
    peak: Math.max(...peaks),
    told: events.map(({ r, i, event: { id, stats, candidates } }) => ({
      r, i, summary: stats.summary ?? null, position: stats.position, embedding: stats.embedding,
      layer: stats.layers[0], layers: stats.layers.length,
      candidates: candidates.length, drawn: candidates.some((one) => one.id === id),
    })),
  };
}"""


def keep(page: Page, most_bytes: float, recent: int, *runs: tuple[int, int, int]) -> Any:
    return page.evaluate(RUNS, [most_bytes, recent, [list(run) for run in runs]])


@pytest.fixture(scope="module")
def loaded(browser: Any, _sites: dict[tuple[Any, ...], Site]) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(_sites.setdefault((), _sites.get(()) or fake_site()).url)
    yield page
    page.close()


def test_within_the_bound_everything_is_whole(loaded: Page) -> None:
    kept = keep(loaded, 1e9, 8, (300, 4, 4))
    assert kept["usage"]["whole"] == 300
    assert all(one["summary"] is None for one in kept["told"])
    assert all(len(one["layer"]["entropy"]) == 4 for one in kept["told"])
    assert all(one["candidates"] == 20 for one in kept["told"])


@pytest.mark.parametrize("most_bytes", [2e6, 1e6, 4e5, 2e5])
def test_the_bound_holds_and_the_oldest_are_summarised_first(
    loaded: Page, most_bytes: float
) -> None:
    kept = keep(loaded, most_bytes, 16, (400, 8, 8), (400, 8, 8))
    assert kept["peak"] <= most_bytes
    told, usage = kept["told"], kept["usage"]
    size = [one["summary"]["tokens"] if one["summary"] else 0 for one in told]
    whole = [n == 0 for n in size]
    assert whole == sorted(whole), "all whole ones are newer than all summarised ones"
    assert 16 <= sum(whole) < 800
    together = [n for n in size if n != 0]
    assert [n == 1 for n in together] == sorted(n == 1 for n in together), "then heads, then tokens"
    assert usage["whole"] + usage["together"] + usage["shared"] == 800
    assert usage["largestGroup"] == max(0, *(n for n in size if n != 1))


def test_a_summary_is_the_mean_of_what_it_stands_for(loaded: Page) -> None:
    told = keep(loaded, 2e5, 16, (300, 8, 8), (300, 8, 8))["told"]
    groups: dict[tuple[float, int], list[Any]] = {}
    for one in told:
        layer = one["layer"]
        assert (one["position"], one["embedding"], one["layers"]) == (one["i"], one["i"], 8)
        assert one["drawn"], "the token that was drawn stays among its candidates"
        if one["summary"] is None:
            assert layer["entropy"] == [one["i"] + head for head in range(8)]
            continue
        assert one["summary"]["heads"] == 8
        assert one["candidates"] in (4, 5)
        groups.setdefault((layer["residual"], one["r"]), []).append(one)
    assert len(groups) > 16
    for (residual, r), members in groups.items():
        numbers = [one["i"] for one in members]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "neighbours"
        assert {one["summary"]["tokens"] for one in members} == {len(members)}
        layer = members[0]["layer"]
        mean = sum(numbers) / len(numbers)
        assert residual == pytest.approx(mean)
        assert layer["attention"] == pytest.approx(2 * mean)
        assert layer["entropy"] == pytest.approx([mean + 3.5])
        assert (layer["mlp"], layer["attention_cosine"], layer["attention_ms"]) == (r, -0.5, None)


# The page's own Retention, with another bound.
BOUND = """async ([bytes, recent]) => {
  const { retention } = await import("/static/js/turns/retention.js");
  Object.assign(retention, { mostBytes: bytes, recent });
}"""


def small(page: Page, site: Site, most_bytes: float, n: int) -> Playground:
    """A page with `n` tokens that keeps so much. Of a site no faster than pages are on a busy
    machine: those that fall behind are sent tokens without measurements."""
    play = Playground(page, site).open()
    page.evaluate(BOUND, [most_bytes, 16])
    play.set(max_tokens=n, seed=3)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    return play


def costs(page: Page) -> dict[str, str]:
    page.locator("#costs-open").click()
    rows = page.locator("#costs-facts div").all()
    told = {row.locator("dt").inner_text(): row.locator("dd").inner_text() for row in rows}
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    return told


def test_the_page_tells_what_it_keeps_and_stays_whole_to_look_at(
    page: Page, site: Callable[..., Site]
) -> None:
    play = small(page, site(), 120_000, 200)
    told = costs(page)["Measurements"]
    assert "of 120 KB" in told
    assert "averaged heads" in told
    assert "as means of up to" in told
    assert len(play.text()) > 200, "no text is lost"
    page.locator("#plot").focus()
    page.keyboard.press("Home")
    expect(page.locator("#lay-sub")).to_contain_text("tokens, heads averaged")
    expect(page.locator("#heads")).to_have_attribute(
        "aria-label", re.compile("Mean attention entropy of 8 heads")
    )
    for key in "12345":
        page.keyboard.press(key)
    page.keyboard.press("End")
    expect(page.locator("#lay-sub")).to_contain_text("dispatches")
    page.get_by_role("button", name="New", exact=True).click()
    until(
        page, lambda: costs(page)["Measurements"].startswith("0 B of 120 KB"), "nothing to be kept"
    )


@pytest.mark.quick
def test_a_file_has_no_summaries_in_the_place_of_measurements(
    page: Page, site: Callable[..., Site]
) -> None:
    """Summarised measurements are left out of a saved conversation, and the file opens again."""
    small(page, site(), 120_000, 120)
    packed = page.evaluate(
        """async () => {
          const [{ pack }, { validateReplay }, { state }] = await Promise.all(
            ["replay/file", "replay/validate", "state"].map((n) => import(`/static/js/${n}.js`)));
          const packed = JSON.parse(JSON.stringify(pack(state)));
          validateReplay(packed);
          return packed;
        }"""
    )
    events = packed["turns"][-1]["answers"][-1]["segments"][0]["events"]
    tokens = [each["event"] for each in events if each["event"]["type"] == "token"]
    assert [token["stats"] is None for token in tokens] == sorted(
        (token["stats"] is None for token in tokens), reverse=True
    )
    assert tokens[0]["stats"] is None
    assert len(tokens[-1]["stats"]["layers"][0]["entropy"]) == 8


def heap(session: CDPSession) -> float:
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"])


def test_a_mean_is_of_what_was_measured(loaded: Page) -> None:
    """A head without a number is none that attends to one token alone."""
    found = loaded.evaluate(
        """async () => {
          const { METRICS, meanOfMeasured } = await import("/static/js/turns/metrics.js");
          const { Retention } = await import("/static/js/turns/retention.js");
          const retention = new Retention(0, 0);
          const entropy = [2, null, 4, null];
          const layer = () => ({ residual: null, attention: 1, mlp: 1, entropy });
          const stats = { layers: [layer(), { ...layer(), entropy: [null] }] };
          const shown = METRICS.entropy.value(layer(), 0, 1);
          retention.record({}, { type: "token", id: 1, stats, candidates: null });
          return [meanOfMeasured([null]), shown, ...stats.layers.map(({ entropy }) => entropy)];
        }"""
    )
    assert found == [None, 3, [3], [None]]


def test_bytes_are_about_what_the_browser_takes(page: Page, site: Callable[..., Site]) -> None:
    """Parsed from JSON, as measurements come; one million numbers of heads and layers."""
    Playground(page, site()).open()
    session = page.context.new_cdp_session(page)
    layer = {"residual": 1.5, "attention": 0.25, "mlp": 3.5, "attention_cosine": 0.125}
    layer |= {"mlp_cosine": -0.5, "entropy": [0.1] * 32, "attention_ms": 0.1, "mlp_ms": 0.2}
    candidate = {"id": 1, "text": " a", "before": 0.3, "after": 0.2, "cut": ""}
    stats = {"position": 1, "embedding": 0.5, "layers": [layer] * 32}
    event = {"type": "token", "id": 1, "stats": stats, "candidates": [candidate] * 20}
    before = heap(session)
    told = page.evaluate(
        """async (text) => {
          const { Retention } = await import("/static/js/turns/retention.js");
          window.retention = new Retention(1e9);
          for (let i = 0; i < 1000; i += 1) window.retention.record({}, JSON.parse(text));
          return window.retention.usage.bytes;
        }""",
        json.dumps(event),
    )
    taken = until(page, lambda: heap(session) - before, "the heap")
    assert told == pytest.approx(taken, rel=0.25)
