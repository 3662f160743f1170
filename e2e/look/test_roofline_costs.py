"""When `static/js/look/plan/roofline-costs.js` asks for the costs of steps, and how often."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from app.protocol.messages import MAX_QUESTIONS
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until

# Ask for the costs of prompts of 2, 3, … rows at every change: instruments are drawn then.
DRAW = """async (n) => {
  const { on } = await import("/static/js/state.js");
  const roof = await import("/static/js/look/plan/roofline-costs.js");
  const { questions } = await import("/static/js/net/inspect.js");
  const steps = Array.from({ length: n }, (_, i) => ({ rows: i + 2, context: 0 }));
  const before = questions().asked;
  const draw = () => {
    const costs = roof.costsOf(steps);
    window.drawn = { costs, error: roof.costsError, asked: questions().asked - before };
  };
  on("look hello", draw);
  draw();
}"""
FRAMES = """async () => {
  for (let i = 0; i < 10; i += 1) await new Promise(requestAnimationFrame);
}"""


@pytest.mark.quick
def test_a_lost_line_is_asked_once_and_again_when_it_is_back(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append("WebSocket connection to")
    play = Playground(page, site())
    play.route_sockets()
    play.open()
    play.offline = True
    play.cut()
    expect(page.locator("body")).to_have_attribute("data-engine", "lost")
    page.evaluate(DRAW, 2)
    until(page, lambda: page.evaluate("window.drawn.error"), "the error")
    page.evaluate(FRAMES)
    assert page.evaluate("window.drawn.asked") == 2
    play.offline = False
    play.wait_ready()
    until(page, lambda: page.evaluate("window.drawn.costs"), "the costs")
    assert page.evaluate("window.drawn.error") == ""


def test_many_sizes_are_asked_for_one_after_the_other(
    page: Page, play: Callable[..., Playground]
) -> None:
    play(ask_seconds=0.05)
    n = 2 * MAX_QUESTIONS
    page.evaluate(DRAW, n)
    until(page, lambda: page.evaluate("window.drawn.costs"), "the costs")
    drawn = page.evaluate("window.drawn")
    assert (drawn["asked"], drawn["error"]) == (n, "")
    assert len({cost["flops"] for cost in drawn["costs"]}) == n
