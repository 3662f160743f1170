"""The overhead meter: the speed of writing in each state of looking, measured on the live run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.look.test_looks import violations
from e2e.playground import Playground
from e2e.site import Site

# Notes tokens as a run tells them: [captured, asked before it, milliseconds] each. A question is
# answered before its token, or `late`, after all of them.
NOTE = """async ([told, late]) => {
  const { recordInterval, speeds, forget } = await import("/static/js/panels/overhead.js");
  const { inspect } = await import("/static/js/net/inspect.js");
  forget();
  const segment = { capture: true };
  const plain = { capture: false };
  for (const [i, [captured, asked, interval]] of told.entries()) {
    const answer = asked && inspect({ kind: "no" }).catch(() => {});
    if (!late) await answer;
    const stats = captured ? {} : null;
    const of = captured ? segment : plain;
    recordInterval({ stats, index: i + 2, times: { interval } }, of);
  }
  return speeds();
}"""


def speeds(page: Page, *told: tuple[int, bool, bool, float], late: bool = False) -> Any:
    """`told`: (tokens, captured, asked before each, milliseconds)."""
    tokens = [[captured, asked, ms] for n, captured, asked, ms in told for _ in range(n)]
    return page.evaluate(NOTE, [tokens, late])


@pytest.mark.quick
def test_each_state_has_the_speed_of_all_its_time(play: Callable[..., Playground]) -> None:
    page = play().page
    found = speeds(page, (41, False, False, 10.0), (41, True, False, 20.0), (41, True, True, 40.0))
    assert found == {"off": 100, "on": 50, "asking": 25}
    # One slow token of four counts as what it took, where a median would not see it.
    uneven = [(3, True, False, 10.0), (1, True, False, 50.0)] * 10
    found = speeds(page, (20, False, False, 10.0), *uneven)
    assert found["on"] == pytest.approx(50, rel=0.05)


def test_weights_that_are_stored_otherwise_have_their_own_speed(
    play: Callable[..., Playground],
) -> None:
    site = play()
    assert speeds(site.page, (41, False, False, 10.0))["off"] == 100
    site.load_as(dtype="q8")
    left = site.page.evaluate(
        "import('/static/js/panels/overhead.js').then(({ speeds }) => speeds())"
    )
    assert left == {"off": None, "on": None, "asking": None}


def test_an_instrument_asks_still_between_its_questions(play: Callable[..., Playground]) -> None:
    page = play().page
    now_and_then = [(1, True, True, 40.0), (5, True, False, 40.0)] * 6
    found = speeds(page, *now_and_then, (40, True, False, 20.0))
    assert found["asking"] == pytest.approx(25, rel=0.1)
    assert found["on"] == pytest.approx(50, rel=0.01), "and a while after its last it does not"


def test_an_instrument_asks_until_it_is_answered(play: Callable[..., Playground]) -> None:
    """The answer takes longer than eight tokens, so its slow token counts too."""
    once = [(1, True, True, 10.0), (29, True, False, 10.0), (1, True, False, 300.0)]
    found = speeds(play().page, (20, True, False, 10.0), *once, late=True)
    assert found["on"] == pytest.approx(100)
    assert found["asking"] == pytest.approx(30 / (29 * 0.01 + 0.3))


def test_the_sheet_tells_what_looking_costs(page: Page, site: Callable[..., Site]) -> None:
    play = Playground(page, site(delay=0.01, ask_seconds=0.1)).open()
    capture = page.get_by_role("switch", name="Capture")
    for captured, instrument in [(False, ""), (True, ""), (True, "attention")]:
        capture.set_checked(captured)
        play.set(max_tokens=60)
        if play.tokens.count():
            page.get_by_role("button", name="New", exact=True).click()
        play.ask()
        if instrument:
            page.evaluate("(name) => { location.hash = `#look=${name}` }", instrument)
        play.wait_tokens(60)
        play.wait_done()
    page.keyboard.press("Escape")
    page.locator("#costs-open").click()
    sheet = page.get_by_role("dialog", name="Cost of measuring")
    for state in ("Capture off", "Capture on", "Instrument open"):
        row = sheet.locator("div").filter(has_text=state)
        expect(row.locator("dd")).to_have_text(re.compile(r"[\d.,]+ tok/s(, \d+ % slower)?"))
    expect(sheet.locator("div").filter(has_text="Instrument open")).to_contain_text("% slower")
    results = sheet.locator("div").filter(has=page.get_by_text("Instruments", exact=True))
    expect(results.locator("dd")).to_have_text(re.compile(r"^[1-9][\d.,]* K?B of .* of results$"))
    assert violations(page) == []


def test_the_run_tells_of_experts_that_do_not_all_lie_on_the_device(
    page: Page, site: Callable[..., Site]
) -> None:
    """Two steps, of a prompt that fits one and of the tokens after it: 3 of 4 found in each."""
    play = Playground(page, site(experts=(3, 1))).open()
    shown = page.get_by_test_id("experts")
    expect(shown).to_be_hidden()
    play.set(max_tokens=20)
    play.ask()
    play.wait_done()
    steps = page.evaluate(
        "import('/static/js/view.js').then(({ view }) => {"
        "  const { segment } = view.answer;"
        "  return segment.chunks.length + segment.nTokens; })"
    )
    assert steps > 20
    expect(shown).to_have_text(re.compile(rf"Experts\s+{steps}(\.0)? MB loaded\s*75 % hits"))
    assert page.locator(".run dl").evaluate("dl => dl.scrollWidth <= dl.clientWidth")
    assert violations(page) == []


def test_a_run_without_such_experts_has_no_line_for_them(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, site()).open()
    play.set(max_tokens=5)
    play.ask()
    play.wait_done()
    expect(page.get_by_test_id("experts")).to_be_hidden()
