"""Looking closer: the panel of instruments opens, closes and is driven by the core."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from e2e.look.panel import LookPanel
from e2e.look.test_looks import WATCH_SHIFTS, open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from tests.app.fake_encoder import INFO

INSTRUMENTS = (
    "tokens",
    "timeline",
    "forward",
    "attention",
    "lens",
    "experts",
    "filters",
    "reach",
    "branches",
    "compare",
    "loss",
    "cache",
    "attribution",
    "retrieval",
    "schedule",
    "weights",
    "plan",
    "lab",
    "needs",
    "train",
)
FILLED = tuple(name for name in INSTRUMENTS if name not in ("compare", "lab", "train", "retrieval"))
"""Instruments with a table as soon as there is an answer; a comparison, the lab's experiments and a
training must be run first, as `test_compare.py`, `test_lab.py` and `test_train.py` do, and
retrieval needs an embedding model, see `test_retrieval.py`."""
EXPERTS = 6
"""Experts of the fake model, so that the instrument for experts is there too."""
MAX_ROWS = 400
"""Most rows of a table; files have all of them."""

# Of a PNG: its size, the colour of its corner, the share of pixels that are not of that colour, and
# how many colours there are.
LOOK_AT = """async (data) => {
  const image = new Image();
  image.src = `data:image/png;base64,${data}`;
  await image.decode();
  const { width, height } = image;
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
  const painted = pixels.reduce((n, pixel) => n + (pixel !== pixels[0]), 0) / pixels.length;
  const ground = [pixels[0] & 255, (pixels[0] >> 8) & 255, (pixels[0] >> 16) & 255];
  return { width, height, ground, painted, colours: new Set(pixels).size };
}"""


def wrote(page: Page, here: Site, n: int = 30, **media: str) -> tuple[Playground, LookPanel]:
    """A page on which an answer of `n` tokens was written."""
    play = open_page(page, here, **media)
    play.set(max_tokens=n, seed=3)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    return play, play.look


@pytest.mark.quick
def test_an_instrument_is_fetched_when_it_is_opened_and_again_when_that_failed(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console += ["Failed to load resource", "Unexpected token"]
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url.rpartition("/")[2]))
    page.route("**/look/lens/lens.js", lambda route: route.abort())
    play, look = wrote(page, site())
    assert "look/lens/lens.js" not in fetched
    look.open("lens")
    expect(look.message).to_contain_text("The server cannot be reached. Continues automatically")
    expect(look.panel.get_by_role("button", name="CSV")).to_be_disabled()
    page.unroute("**/look/lens/lens.js")
    play.core.focus()
    page.keyboard.press("ArrowLeft")  # what is looked at changes, so it is tried again
    expect(page.locator(".ln-grid tr").first).to_be_visible()
    expect(look.panel.get_by_role("button", name="CSV")).to_be_enabled()
    broken = {"body": "export const weights = (;", "content_type": "text/javascript"}
    page.route("**/look/weights/weights.js", lambda route: route.fulfill(**broken))
    look.open("weights")
    expect(look.message).to_contain_text("This could not be shown: ")


@pytest.mark.quick
def test_the_keyboard_alone_opens_drives_and_closes(page: Page, site: Callable[..., Site]) -> None:
    play, look = wrote(page, site())
    play.core.focus()
    page.keyboard.press("l")
    expect(look.panel).to_be_focused()
    expect(look.tab("Tokens")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(look.panel).to_be_hidden()
    expect(play.core).to_be_focused()
    look.tab("Tokens").focus()
    page.keyboard.press("ArrowRight")
    expect(look.tab("Timeline")).to_be_focused()
    expect(look.panel).to_be_hidden()
    page.keyboard.press("Enter")
    expect(look.panel).to_be_visible()
    expect(look.panel).to_have_accessible_name("Timeline")
    page.keyboard.press("ArrowDown")
    expect(look.panel).to_be_focused()
    page.keyboard.press("Escape")
    expect(look.tab("Timeline")).to_be_focused()
    page.keyboard.press("L")
    expect(look.tab("Timeline")).to_have_attribute("aria-selected", "true")


def test_escape_closes_the_panel_before_it_stops_the_writing(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.03))
    play.ask()
    play.wait_tokens(3)
    look = play.look.open("timeline")
    page.keyboard.press("Escape")
    expect(look.panel).to_be_hidden()
    expect(page.locator("body")).to_have_attribute("data-writing", "")
    page.keyboard.press("Escape")
    play.wait_done()


def test_the_core_says_which_token_is_shown_while_the_panel_is_open(
    page: Page, site: Callable[..., Site]
) -> None:
    play, look = wrote(page, site())
    look.open("timeline")
    readout = look.panel.locator(".tl-readout b")
    word = (play.tokens.nth(29).text_content() or "").strip()
    expect(readout).to_have_text(f"30 {word}")
    play.core.focus()
    page.keyboard.press("ArrowLeft")
    expect(readout).to_contain_text("29 ")
    page.keyboard.press("Home")
    expect(readout).to_contain_text("1 ")
    plot = look.panel.get_by_role("slider", name="Token on the timeline")
    plot.focus()
    page.keyboard.press("ArrowRight")
    expect(play.core).to_have_attribute("aria-valuenow", "2")


def test_what_the_panel_covers_cannot_be_reached_and_comes_back(
    page: Page, site: Callable[..., Site]
) -> None:
    play, look = wrote(page, site())
    before = play.text()
    look.open("cache")
    expect(play.prompt).not_to_be_visible()
    expect(page.locator(".next")).to_be_visible()
    expect(play.core).to_be_visible()
    panel = look.panel.bounding_box()
    core = page.locator(".core").bounding_box()
    assert panel is not None
    assert core is not None
    assert abs(panel["y"] + panel["height"] - core["y"]) <= 1
    page.keyboard.press("Control+Shift+O")
    expect(look.panel).to_be_hidden()
    expect(play.prompt).to_be_focused()
    assert before


def test_every_instrument_has_an_address(page: Page, site: Callable[..., Site]) -> None:
    here = site()
    page.goto(f"{here.url}#look=cache")
    look = Playground(page).look
    expect(look.tab("Cache")).to_have_attribute("aria-selected", "true")
    expect(look.message).to_contain_text("No run yet")
    expect(look.panel.get_by_role("button", name="CSV")).to_be_disabled()
    look.tab("Timeline").click()
    page.wait_for_url(re.compile("look=timeline$"))
    look.tab("Timeline").click()
    expect(look.panel).to_be_hidden()
    page.wait_for_url(re.compile("#(?!.*look=)"))
    page.goto(f"{here.url}#look=nothing-of-that-name")
    expect(page.get_by_test_id("notice")).to_contain_text("This link cannot be followed")
    expect(look.panel).to_be_hidden()


def test_a_reload_opens_the_same_instrument_and_says_what_it_lost(
    page: Page, site: Callable[..., Site]
) -> None:
    play, look = wrote(page, site())
    look.open("timeline")
    expect(look.source).to_contain_text("Browser clock: socket, draw")
    page.reload()
    play.wait_ready()
    expect(look.source).to_contain_text("its own times are unknown")
    steps = [row for row in look.table() if row["token"]]
    assert {row["socket, ms"] for row in steps} == {row["draw, ms"] for row in steps} == {""}
    assert "" not in {row["pipe, ms"] for row in steps}, "the server's clock is not forgotten"


def test_a_closed_panel_asks_nothing(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site())
    messages = play.messages
    play.prompt.fill("How many tokens is this")
    expect(page.get_by_test_id("count")).to_contain_text("tokens")
    assert {message["type"] for message in messages.sent} == {"count"}
    play.look.open("tokens")
    expect(page.locator(".pc").first).to_be_visible()
    assert {message["type"] for message in messages.sent} == {"count", "tokenize"}


def test_a_lost_line_is_said_and_the_panel_goes_on_by_itself(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append("WebSocket connection to")
    play = Playground(page, site())
    play.route_sockets()
    play.open()
    play.offline = True
    play.cut()
    expect(play.notice).to_contain_text("The server cannot be reached")
    play.prompt.fill("A thought")
    look = play.look.open("tokens")
    expect(look.message).to_contain_text("The server is disconnected")
    play.offline = False
    expect(look.message).to_be_hidden(timeout=15_000)
    expect(page.locator(".pc").first).to_be_visible()


@pytest.mark.parametrize(
    "name",
    [
        *FILLED[::2],
        *(pytest.param(name, marks=pytest.mark.slow) for name in FILLED[1::2]),
    ],
)
def test_files_hold_what_the_table_says(page: Page, site: Callable[..., Site], name: str) -> None:
    _, look = wrote(page, site(n_experts=EXPERTS))
    look.open(name)
    expect(look.message).to_be_hidden()
    if name == "tokens":
        expect(page.locator(".pc").first).to_be_visible()
    table, file = look.table(), look.csv()
    assert len(table) == min(len(file), MAX_ROWS) > 0
    for shown, exact in zip(table, file, strict=False):
        assert shown.keys() == exact.keys()
        for column, text in shown.items():
            try:
                expected = float(exact[column])
            except ValueError:
                assert text == exact[column]
            else:
                assert float(text.replace(",", "")) == pytest.approx(expected, rel=1e-4)
    saved = json.loads(look.save("JSON"))
    assert saved["instrument"] == name
    assert saved["columns"] == list(file[0])
    assert len(saved["rows"]) == len(file)
    assert saved["model"] == "fake-story f16"


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_a_picture_is_saved_of_what_is_seen(
    page: Page,
    site: Callable[..., Site],
    theme: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path))  # there is no document
    _, look = wrote(page, site(n_experts=EXPERTS, embedding=INFO), color_scheme=theme)
    for name in INSTRUMENTS:
        look.open(name)
        expect(look.message).to_be_hidden()
        if name == "tokens":
            expect(page.locator(".pc").first).to_be_visible()
        page.wait_for_timeout(100)
        data = base64.b64encode(look.save("PNG")).decode()
        picture = page.evaluate(LOOK_AT, data)
        assert picture["width"] > 1000, name
        assert picture["height"] > 400, name
        assert (sum(picture["ground"]) > 600) == (theme == "light"), name
        assert 0.01 < picture["painted"] < 0.6, f"{name}: words and drawing on an even ground"
        assert picture["colours"] > 50, f"{name}: smoothed words have colours between two"


def test_the_picture_saved_beside_a_table_is_that_of_the_drawing(
    page: Page, site: Callable[..., Site]
) -> None:
    _, look = wrote(page, site())
    look.open("lens")
    expect(page.locator(".ln-grid tr").first).to_be_visible()
    drawing = look.save("PNG")
    button = look.panel.get_by_role("button", name="Table")
    button.click()
    expect(page.locator("#look-numbers table")).to_be_visible()
    assert look.save("PNG") == drawing
    expect(page.locator(".ln-grid tr").first).to_be_hidden()
    button.click()
    expect(page.locator(".ln-grid tr").first).to_be_visible()


@pytest.mark.parametrize(
    "name",
    [
        "attention",
        *(pytest.param(n, marks=pytest.mark.slow) for n in INSTRUMENTS if n != "attention"),
    ],
)
def test_nothing_moves_while_text_streams_beside_an_instrument(
    page: Page, site: Callable[..., Site], name: str
) -> None:
    page.add_init_script(WATCH_SHIFTS)
    play = open_page(page, site(n_experts=EXPERTS))
    play.set(max_tokens=150)
    play.ask()
    play.look.show(name)  # it may be busy all the time, with token after token
    expect(page.locator(f".instrument.{name}")).to_be_visible()
    play.wait_tokens(5)
    page.evaluate("() => { window.shifts.length = 0 }")
    play.wait_tokens(150)
    play.wait_done()
    shifts = page.evaluate("() => window.shifts")
    assert sum(shift[0] for shift in shifts) < 0.001, json.dumps(shifts, indent=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theme", "size"),
    [
        ("dark", (360, 640)),
        ("light", (1440, 900)),
        ("dark", (1440, 900)),
        ("light", (900, 800)),
    ],
)
def test_axe_finds_nothing_in_an_instrument(
    page: Page, site: Callable[..., Site], theme: str, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    play = open_page(page, site(n_experts=EXPERTS), color_scheme=theme)
    look = play.look
    for name in INSTRUMENTS:
        look.open(name)
        assert violations(page) == [], f"{name}, empty"
    page.keyboard.press("Escape")
    play.ask()
    play.wait_tokens(20)
    page.keyboard.press("Escape")
    play.wait_done()
    for name in INSTRUMENTS:
        look.open(name)
        expect(look.message).to_be_hidden()
        page.wait_for_timeout(200)
        assert violations(page) == [], name
        look.table()
        assert violations(page) == [], f"{name} as a table"


@pytest.mark.quick
def test_a_phone_shows_an_instrument_over_the_ribbon(page: Page, site: Callable[..., Site]) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    play = open_page(page, site(n_experts=EXPERTS))
    play.ask("x" * 200)
    play.wait_tokens(20)
    play.wait_done()
    look = play.look
    for name in INSTRUMENTS:
        page.locator("#tabs").get_by_role("button", name="Look closer").click()
        look.open(name)
        expect(page.locator("#ribbon-open")).to_be_in_viewport(ratio=1)
        expect(look.panel).to_be_in_viewport(ratio=1)
        assert play.overflow() <= 0, name
        wide = "(node) => node.scrollWidth - node.clientWidth"
        assert page.locator(f".instrument.{name}").evaluate(wide) <= 0, name
        page.locator("#ribbon-open").click()
        expect(play.core).to_be_visible()
        page.keyboard.press("Escape")
        expect(play.core).to_be_hidden()
        expect(look.panel).to_be_visible()
        page.keyboard.press("Escape")
        expect(look.panel).to_be_hidden()
        expect(play.prompt).to_be_visible()


@pytest.mark.quick
def test_the_row_of_instruments_fits_every_width(page: Page, site: Callable[..., Site]) -> None:
    play, look = wrote(page, site(n_experts=EXPERTS))
    for width in (768, 1024, 1359, 1360, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        look.open("timeline")
        assert play.overflow() <= 0, width
        expect(look.tab("Cache")).to_be_in_viewport(ratio=1)
        expect(page.locator("#help-open")).to_be_in_viewport(ratio=1)


def test_a_long_name_of_a_device_leaves_the_top_bar_in_one_row(
    page: Page, site: Callable[..., Site]
) -> None:
    open_page(page, site())
    name = "llvmpipe (LLVM 15.0.6, 256 bits) on a machine with a long name · Vulkan"
    page.locator("#device-name").evaluate("(node, name) => void (node.textContent = name)", name)
    for width in (360, 768, 1024, 1100, 1280, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        boxes = [page.locator(f"#{part}").bounding_box() for part in ("theme", "about-open")]
        assert boxes[0]
        assert boxes[1]
        assert boxes[0]["y"] < boxes[1]["y"] + boxes[1]["height"], width
