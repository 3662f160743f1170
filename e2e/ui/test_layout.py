"""Every instrument and notice in windows of many sizes: nothing overlaps or is out of reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.look.test_look import INSTRUMENTS
from e2e.look.test_looks import open_page
from e2e.playground import Playground
from e2e.site import Site
from e2e.ui.layout_faults import RECORD_CANVAS_TEXTS, layout_faults
from e2e.waiting import TWO_FRAMES

SIZES = (
    (360, 740), (768, 1024), (1024, 768), (1280, 720), (1366, 768), (1440, 900), (1536, 864),
    (1920, 1080), (2560, 1440),
)  # fmt: skip
HEIGHTS = dict(SIZES)
"""Widths of windows, and a height that goes with each."""
FEW = (360, 1024, 1366)
SHEETS = ("Core", "Layers", "Next token", "Sampling", "Run")
LONG_NAME = "SmolLM2-135M-Instruct"
CONTEXT = 256
DRAWN_WITHIN = 4
"""Looks at a view, two frames apart, after which everything is where it stays."""

# The longest of their kinds. That of a full context needs none of these: the run ends with it.
NOTICES: dict[str, dict[str, Any]] = {
    "refused": {
        "problem": {
            "code": "context_exceeded",
            "message": "the prompt has 1,204 tokens, and the context holds 256 with the answer",
        }
    },
    "restarting": {
        "engine": {
            "state": "restarting",
            "message": "the process of the engine ended with signal 9, as a system without memory "
            "ends it; it starts again for the third time in a minute",
            "progress": 0.4,
        }
    },
    "not kept": {
        "unkept": {
            "code": "storage_full",
            "message": "This conversation is 21 MB, and the browser gives this page 20 MB.",
        }
    },
}
SET_STATE = """async (values) => {
  const { changed, state } = await import("/static/js/state.js");
  const before = Object.fromEntries(Object.keys(values).map((name) => [name, state[name]]));
  Object.assign(state, values);
  changed("connection", "turns");
  return before;
}"""


def views(play: Playground) -> Iterator[tuple[str, str]]:
    """Show one part of the page after another; yield its name and the selector of what is shown."""
    page = play.page
    play.look.show("")
    yield "the context is full", "body"
    for name, values in NOTICES.items():
        before = page.evaluate(SET_STATE, values)
        yield name, "body"
        page.evaluate(SET_STATE, before)
    if (page.viewport_size or {"width": 0})["width"] < 768:
        for name in SHEETS:
            page.locator("#tabs").get_by_role("button", name=name).click()
            yield name, ".sheet[data-sheet]:not([hidden])"
        page.keyboard.press("Escape")
    for name in INSTRUMENTS:
        play.look.open(name)
        yield name, "body"


def faults_at(play: Playground, width: int) -> list[str]:
    play.page.set_viewport_size({"width": width, "height": HEIGHTS[width]})
    found = []
    for view, scope in views(play):
        faults = settled_faults(play.page, scope)
        found += [f"{width} px, {view}: {fault}" for fault in faults]
    return found


def settled_faults(page: Page, scope: str) -> list[str]:
    """Return the faults that stay: a canvas is drawn again a frame after its box has changed."""
    faults = [""]
    for _ in range(DRAWN_WITHIN):
        page.evaluate(TWO_FRAMES)
        faults = layout_faults(page, scope)
        if not faults:
            break
    return faults


def check(page: Page, site: Callable[..., Site], theme: str, widths: Sequence[int]) -> None:
    page.add_init_script(RECORD_CANVAS_TEXTS)
    here = site(
        delay=0.0,
        context=CONTEXT,
        n_experts=6,
        experts=(12, 1),
        loras=("fox", "an-adapter-with-a-long-name"),
        name=LONG_NAME,
    )
    play = open_page(page, here, color_scheme=theme)
    play.write("Tell me a story", n=20)
    play.set(max_tokens=CONTEXT, seed=3)
    play.ask("And then?")
    play.wait_done()
    expect(play.notice).to_contain_text("The context is full")
    play.compare.open("Once upon a time").run()
    faults = [fault for width in widths for fault in faults_at(play, width)]
    assert not faults, "\n".join(faults)


def test_nothing_overlaps_in_three_windows(page: Page, site: Callable[..., Site]) -> None:
    check(page, site, "light", FEW)


@pytest.mark.parametrize(
    ("theme", "widths"),
    [("light", [width for width in HEIGHTS if width not in FEW]), ("dark", list(HEIGHTS))],
    ids=["light", "dark"],
)
def test_nothing_overlaps_in_any_window(
    page: Page, site: Callable[..., Site], theme: str, widths: Sequence[int]
) -> None:
    check(page, site, theme, widths)
