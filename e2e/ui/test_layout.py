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
from e2e.tour.card import TITLES
from e2e.ui.layout_faults import RECORD_CANVAS_TEXTS, layout_faults
from e2e.waiting import TWO_FRAMES
from tests.app.conftest import StartSite, hub, start_site  # noqa: F401
from tests.app.fake_engine import loader
from tests.app.models.fake_hub import FakeHub

SIZES = (
    (360, 740), (768, 1024), (1024, 768), (1280, 720), (1366, 768), (1440, 900), (1536, 864),
    (1920, 1080), (2560, 1440),
)  # fmt: skip
HEIGHTS = dict(SIZES)
"""Widths of windows, and a height that goes with each."""
FEW = (360, 1024, 1920)
SHEETS = ("Core", "Layers", "Next token", "Sampling", "Run")
SMOLLM2 = {
    "name": "SmolLM2-135M-Instruct",
    "n_layers": 30,
    "n_heads": 9,
    "n_kv_heads": 3,
    "head_dim": 64,
}
"""The default model: many thin rows, and a long name."""
CONTEXT = 256
N_DIALOGS = 7
N_EXAMPLES = 9
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


Views = Callable[[Playground], Iterator[tuple[str, str]]]
"""Show one part of the page after another; yield its name and the selector of what is shown."""


def empty_views(play: Playground) -> Iterator[tuple[str, str]]:
    yield "the start page", "body"


def views(play: Playground) -> Iterator[tuple[str, str]]:
    page = play.page
    play.look.show("")
    yield "the context is full", "body"
    for name, values in NOTICES.items():
        before = page.evaluate(SET_STATE, values)
        yield name, "body"
        page.evaluate(SET_STATE, before)
    page.locator(".message-edit").last.evaluate("(node) => node.click()")
    yield "an edited message", "body"
    page.keyboard.press("Escape")
    yield from dialogs(page)
    if (page.viewport_size or {"width": 0})["width"] < 768:
        for name in SHEETS:
            page.locator("#tabs").get_by_role("button", name=name).click()
            yield name, ".sheet[data-sheet]:not([hidden])"
        page.keyboard.press("Escape")
    for name in INSTRUMENTS:
        play.look.open(name)
        yield name, "body"


def dialogs(page: Page) -> Iterator[tuple[str, str]]:
    """Those of the page, each by its button, which may be in a dialog or sheet that is closed."""
    openers = page.locator("[aria-haspopup=dialog]")
    assert openers.count() >= N_DIALOGS
    for opener in openers.all():
        opener.evaluate("(node) => node.click()")
        dialog = page.locator("dialog[open]")
        expect(dialog).to_have_count(1)
        yield f"dialog {dialog.get_attribute('id')}", "dialog[open]"
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)


def tour_steps(play: Playground) -> Iterator[tuple[str, str]]:
    play.look.show("")
    play.page.evaluate("() => document.activeElement.blur()")
    play.page.keyboard.press("t")
    for step, title in enumerate(TITLES, start=1):
        play.tour.wait(step)
        yield f"tour, {title}", "#tour"
        play.tour.check_place()
        play.page.keyboard.press("ArrowRight")
    play.page.keyboard.press("Escape")
    expect(play.tour.card).to_be_hidden()


def faults_at(play: Playground, width: int, views: Views) -> list[str]:
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


def open_full(page: Page, site: Callable[..., Site], theme: str) -> Playground:
    """The page of a model that has everything an instrument may show."""
    page.add_init_script(RECORD_CANVAS_TEXTS)
    here = site(
        delay=0.0,
        context=CONTEXT,
        n_experts=6,
        experts=(12, 1),
        loras=("fox", "an-adapter-with-a-long-name"),
        **SMOLLM2,
    )
    play = open_page(page, here, color_scheme=theme)
    play.write("Tell me a story", n=20)
    return play


def check(page: Page, site: Callable[..., Site], theme: str, widths: Sequence[int]) -> None:
    """Check the page without a text, and with a context that is full."""
    play = open_full(page, site, theme)
    play.start_new()
    faults = [fault for width in widths for fault in faults_at(play, width, empty_views)]
    play.set(max_tokens=CONTEXT, seed=3)
    play.ask("Tell me a story")
    play.wait_done()
    expect(play.notice).to_contain_text("The context is full")
    play.compare.open("Once upon a time").run()
    faults += [fault for width in widths for fault in faults_at(play, width, views)]
    assert not faults, "\n".join(faults)


def test_all_prompts_to_begin_with_are_in_sight(page: Page, site: Callable[..., Site]) -> None:
    """On laptops and larger windows; a phone scrolls."""
    open_page(page, site(**SMOLLM2), color_scheme="light")
    examples = page.get_by_role("list", name="Prompts to begin with").get_by_role("button")
    expect(examples).to_have_count(N_EXAMPLES)
    for width, height in SIZES:
        if width < 1024:
            continue
        page.set_viewport_size({"width": width, "height": height})
        for example in examples.all():
            expect(example).to_be_in_viewport(ratio=1)


def test_no_line_of_a_text_is_longer_than_the_line_to_write_in(
    page: Page, site: Callable[..., Site]
) -> None:
    """In a wide window too, where the eye would lose a longer one."""
    play = open_page(page, site(delay=0.0), color_scheme="light")
    play.write("Tell me a long story. " * 20, n=80)
    page.set_viewport_size({"width": 1920, "height": 1080})
    widths = {
        part: page.locator(part).evaluate("(node) => node.getBoundingClientRect().width")
        for part in (".said", ".answer", ".field")
    }
    assert widths[".said"] == widths[".answer"] == widths[".field"]


def model_views(play: Playground) -> Iterator[tuple[str, str]]:
    """The dialog of the model: what is offered, a name that is refused, what the browser keeps."""
    page = play.page
    page.get_by_test_id("about-open").click()
    page.get_by_role("button", name="Change the model").click()
    dialog = page.get_by_role("dialog", name="Change the model")
    expect(dialog.get_by_role("radio").first).to_be_visible()
    yield "models", "dialog[open]"
    page.locator("#models-typed").fill("../model")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("Expected OWNER/MODEL")
    dialog.locator("#kept summary").click()
    yield "a model that is refused", "dialog[open]"
    dialog.locator("#kept summary").click()
    page.keyboard.press("Escape")


@pytest.fixture(autouse=True)
def without_gpu(allowed_console: list[str]) -> None:
    """The browser of these tests has none, and says so when a dialog asks for it."""
    allowed_console.append("No available adapters")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_dialog_of_the_model_fits_any_window(
    page: Page,
    start_site: StartSite,  # noqa: F811
    hub: FakeHub,  # noqa: F811
    allowed_console: list[str],
    theme: str,
) -> None:
    allowed_console.append("status of 400")  # a browser names every answer that is an error
    page.add_init_script(RECORD_CANVAS_TEXTS)
    site = start_site(process=True, switch=lambda settings, model: loader(), **SMOLLM2)
    page.emulate_media(color_scheme="light" if theme == "light" else "dark")
    play = Playground(page, url=f"http://127.0.0.1:{site.port}/").open()
    faults = [fault for width in HEIGHTS for fault in faults_at(play, width, model_views)]
    assert not faults, "\n".join(faults)


@pytest.mark.quick
def test_nothing_overlaps_in_two_windows(page: Page, site: Callable[..., Site]) -> None:
    """What `make test` has of this file; `make test-page` runs all of it."""
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_tour_fits_any_window(page: Page, site: Callable[..., Site], theme: str) -> None:
    play = open_full(page, site, theme)
    faults = [fault for width in HEIGHTS for fault in faults_at(play, width, tour_steps)]
    assert not faults, "\n".join(faults)
