"""Long runs of deep models are drawn without a stutter: main-thread tasks of a recorded trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from e2e.playground import Playground
from e2e.site import Site
from e2e.trace import Recording, recorded

FRAME_MS = 50.0
TOKENS = 4096
LAYERS = HEADS = 32

WRITTEN = """async () => {
  const { view } = await import("/static/js/view.js");
  return view.answer?.tokens.length ?? 0;
}"""


def wait_written(play: Playground, n: int) -> None:
    while play.page.evaluate(WRITTEN) < n:
        play.page.wait_for_timeout(200)


def check(what: str, recording: Recording) -> None:
    """No task may take more than a frame's share of the thread itself. The time that passed is
    printed beside it: it holds what the rest of the machine did meanwhile."""
    print(f"{what}: {len(recording.tasks)} tasks, the longest {recording.longest}")
    assert recording.longest.cpu_ms > 0, "the trace has no thread times"
    assert recording.longest.cpu_ms <= FRAME_MS, f"{what}: {recording.longest}"


def scroll_back(play: Playground) -> None:
    """With the wheel, then to the first token and to the newest by keyboard."""
    page = play.page
    page.locator("#plot").hover()
    for by in (-4000, -8000, -8000, 3000, 6000):
        page.mouse.wheel(by, 0)
        page.wait_for_timeout(120)
    page.locator("#plot").focus()
    for key in ("Home", "PageDown", "End"):
        page.keyboard.press(key)
        page.wait_for_timeout(250)


def change_what_is_shown(play: Playground) -> None:
    """Every metric, and the narrowest columns, which put most tokens on the plate."""
    page = play.page
    for key in "234512":
        page.keyboard.press(key)
        page.wait_for_timeout(150)
    for _ in range(5):
        page.get_by_role("button", name="Narrower columns").click()
        page.wait_for_timeout(100)
    scroll_back(play)


def point_at_tokens(play: Playground) -> None:
    box: Any = play.page.locator("#plot").bounding_box()
    for i in range(40):
        play.page.mouse.move(box["x"] + 20 * i, box["y"] + 100 + 3 * i)
        play.page.wait_for_timeout(16)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_frame_is_late_at_4096_tokens_of_32_layers(
    browser: Browser, page: Page, site: Callable[..., Site]
) -> None:
    options = {"n_layers": LAYERS, "n_heads": HEADS, "context": 8192, "delay": 0.002}
    play = Playground(page, site(**options)).open()
    play.set(max_tokens=TOKENS + 900)
    play.ask()
    wait_written(play, TOKENS - 500)
    with recorded(browser, page) as writing:
        wait_written(play, TOKENS)
    check("writing", writing)
    for act in (scroll_back, change_what_is_shown, point_at_tokens):
        with recorded(browser, page) as acting:
            act(play)
        check(act.__name__, acting)
    assert page.evaluate(WRITTEN) >= TOKENS
    page.keyboard.press("Escape")
