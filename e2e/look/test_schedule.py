"""The scheduler's steps on the page: whose rows ran and who waited, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Browser, Page, expect

from app.engine_client import LocalEngine
from app.replicas.engine import ReplicatedEngine
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from tests.app.fake_engine import loader
from tests.app.fake_options import FakeOptions
from tests.app.fake_tokenizer import CHAT_TEMPLATE, FakeTokenizer


def opened_beside_another(page: Page, browser: Browser, here: Site) -> Playground:
    """Return a page with a comparison of two runs, beside the run of another client: there are two
    slots, so column B waits."""
    other = Playground(browser.new_page(), here).open()
    other.set(max_tokens=400)
    other.ask("Another client")
    other.wait_tokens(2)
    play = open_page(page, here)
    play.set(max_tokens=12)
    play.compare.open("Tell me a story").go.click()
    play.look.open("schedule")
    return play


def test_every_run_has_a_row_and_waiting_is_seen(
    page: Page, browser: Browser, site: Callable[..., Site]
) -> None:
    play = opened_beside_another(page, browser, site(delay=0.02, n_slots=2))
    step = page.get_by_role("slider", name="Step of the engine")
    until(page, lambda: len(play.messages.events("done")) == 2, "the end of both columns")
    expect(page.locator(".st-summary")).not_to_contain_text("column")
    rows = play.look.csv()
    of = {name: [row for row in rows if row["run"] == name] for name in ("column A", "column B")}
    assert {row["run"] for row in rows} == {"column A", "column B", "others"}
    n_prompt = len(play.messages.events("accepted")[0]["prompt"])
    for name, own in of.items():
        assert sum(int(row["prefill rows"]) for row in own) == n_prompt, name
        assert sum(int(row["decode rows"]) for row in own) == 12, name
    waited = [int(row["step"]) for row in of["column B"] if int(row["waiting"])]
    ran = [int(row["step"]) for row in of["column B"] if int(row["prefill rows"])]
    wrote = [int(row["step"]) for row in of["column A"] if int(row["decode rows"])]
    assert waited[-1] == wrote[-1], "column B waits until column A has ended"
    assert max(waited) < min(ran)
    assert not any(int(row["waiting"]) for row in of["column A"])
    step.focus()
    step.press("Home")
    words = str(step.get_attribute("aria-valuetext"))
    assert words.startswith("Step ")
    assert "others: " in words
    assert violations(page) == []


def test_a_closed_strip_asks_nothing(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site(delay=0.02))
    look = play.look.open("schedule")
    expect(page.locator(".st-summary")).to_contain_text("tep")
    expect(page.locator(".st-field")).to_have_attribute("aria-valuenow", re.compile(r"\d"))
    look.tab("Steps").click()
    before = len(asked(play, "steps"))
    play.write(n=20)
    page.wait_for_timeout(400)
    assert len(asked(play, "steps")) == before
    page.set_viewport_size({"width": 360, "height": 740})
    look.open("schedule")
    assert play.overflow() == 0


def test_every_engine_tells_its_load(page: Page) -> None:
    """Three engines, of which one writes; with a single engine there is no such table."""
    load, tokenizer = loader(delay=0.05, n_slots=2), FakeTokenizer(CHAT_TEMPLATE)
    failing = LocalEngine(loader(fail="no such device"), tokenizer)
    engine = ReplicatedEngine([LocalEngine(load, tokenizer), LocalEngine(load, tokenizer), failing])
    here = Site(engine, FakeOptions(n_slots=2)).start()
    try:
        play = open_page(page, here)
        play.set(max_tokens=200)
        play.ask()
        play.wait_tokens(2)
        play.look.open("schedule")
        rows = page.get_by_role("table", name="Load of each engine").locator("tbody tr")
        expect(rows).to_have_count(3)
        states = [status.stats for status in engine.replica_statuses()]
        for i, stats in enumerate(states[:2]):
            assert stats is not None
            expect(rows.nth(i).locator("td").first).to_have_text(str(stats.n_running))
            expect(rows.nth(i)).to_contain_text(f"of {stats.n_blocks}")
        assert sum(stats.n_running for stats in states[:2] if stats) == 1
        expect(rows.nth(2)).to_have_text("3has failed")
        has = play.messages.events("accepted")[0]["engine"]
        see_the_engine_chosen(page, play, has, 3 - has)
        assert violations(page) == []
        page.set_viewport_size({"width": 360, "height": 740})
        assert play.overflow() == 0
    finally:
        here.close()


def see_the_engine_chosen(page: Page, play: Playground, has: int, other: int) -> None:
    """The strip and the blocks of the cache are of the engine that `has` the run, until `other`,
    which has none, is chosen."""
    shown = page.get_by_role("combobox", name="Shown")
    source = page.locator(".look-source")
    expect(shown).to_have_value(str(has))
    expect(shown.locator("option").nth(has - 1)).to_have_text(f"Engine {has} · this answer")
    expect(shown.locator("option").nth(2)).to_be_disabled()
    expect(source).to_contain_text(f"Counted by engine {has} of 3.")
    expect(page.locator(".st-summary")).to_contain_text("this answer: 1 token row")
    shown.select_option(str(other))
    expect(source).to_contain_text(f"Counted by engine {other} of 3.")
    expect(page.locator(".st-summary")).to_contain_text("No step since this was opened")
    until(page, lambda: asked(play, "steps")[-1]["engine"] == other, "a question of that engine")

    play.look.open("cache")
    page.get_by_text("All blocks", exact=True).click()
    used = page.locator(".kv-summary")
    expect(shown, "again that of the run").to_have_value(str(has))
    expect(used).to_contain_text("in use: this answer")
    shown.select_option(str(other))
    expect(source).to_contain_text(f"Counted by engine {other} of 3,")
    expect(used).not_to_contain_text("this answer")
    assert asked(play, "cache")[-1]["engine"] == other
    play.look.open("schedule")
    expect(shown).to_have_value(str(has))


def test_a_single_engine_has_no_table_of_loads(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site(delay=0.02))
    with page.expect_response("**/api/replicas"):
        play.look.open("schedule")
    expect(page.locator(".look-source")).to_contain_text("Counted by the engine.")
    expect(page.locator(".st-replicas")).to_be_hidden()
    expect(page.get_by_role("combobox", name="Shown")).to_have_count(0)


def asked(play: Playground, kind: str) -> list[dict[str, Any]]:
    """Return the messages that asked this kind of question."""
    sent = [m for m in play.messages.sent if m["type"] == "inspect"]
    return [message for message in sent if message["question"]["kind"] == kind]
