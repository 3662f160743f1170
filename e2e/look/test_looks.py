"""Layout, themes, sizes, accessibility, keyboard: what can be measured of how the page looks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES
from tests.app.fake_sampler import stats

# A word that turns out to be longer than its line moves to the next one; that is text being set.
# Everything else must stay where it is.
WATCH_SHIFTS = """
window.shifts = [];
const text = ".answer, .ls-text, .at-words";
const inText = (node) => (node?.nodeType === 3 ? node.parentNode : node)?.closest?.(text);
// As a browser counts: how much of the window it covers, times how far it went.
const shift = ({ previousRect: a, currentRect: b }) => {
  const width = Math.max(a.right, b.right) - Math.min(a.left, b.left);
  const height = Math.max(a.bottom, b.bottom) - Math.min(a.top, b.top);
  const far = Math.max(Math.abs(a.x - b.x), Math.abs(a.y - b.y));
  const covered = (width * height) / (innerWidth * innerHeight);
  return (covered * far) / Math.max(innerWidth, innerHeight);
};
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    // A word of a text that goes to the next line moves, and whatever else does in that frame.
    const others = entry.sources.filter(({ node }) => !inText(node));
    const mixed = others.length < entry.sources.length;
    const value = mixed ? others.reduce((sum, source) => sum + shift(source), 0) : entry.value;
    const moved = others.map(({ node }) => (node?.outerHTML ?? node?.data)?.slice(0, 80));
    if (value) window.shifts.push([value, ...moved]);
  }
}).observe({ type: "layout-shift", buffered: true });
"""

ROWS = """() => {
  const plot = document.querySelector("#plot").getBoundingClientRect();
  const names = [...document.querySelectorAll("#gutter [data-layer]")];
  return names.map((name) => {
    const label = name.getBoundingClientRect();
    const row = document.querySelector(`#lrows [data-layer="${name.dataset.layer}"]`);
    const box = row.getBoundingClientRect();
    return [Number(name.dataset.layer), (label.top + label.bottom) / 2, (box.top + box.bottom) / 2];
  });
}"""

# How much of the core's plate is painted in colours of the map: pixels that are neither paper nor
# lines, in the band of the layers.
PAINTED = """() => {
  const canvas = document.querySelector("#sample");
  const ratio = canvas.width / canvas.clientWidth;
  let last = 0;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (const share of [0.45, 0.5, 0.55]) {
    const row = data.subarray(Math.round(canvas.height * share) * canvas.width * 4);
    for (let x = 0; x < canvas.width; x += 1) {
      const light = row[4 * x] + row[4 * x + 1] + row[4 * x + 2];
      if (row[4 * x + 3] === 255 && light < 600) last = Math.max(last, x);
    }
  }
  return last / ratio;
}"""


SHADES = """() => {
  const canvas = document.querySelector("#sample");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const row = data.subarray(Math.round(canvas.height * 0.5) * canvas.width * 4);
  return new Set(new Uint32Array(row.slice(0, canvas.width * 4).buffer)).size;
}"""
"""Number of colours in a line across the layers of the core sample."""


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{v['id']}: {n['html'][:120]} {n.get('failureSummary', '')[:200]}"
        for v in found
        for n in v["nodes"]
    ]


def open_page(page: Page, here: Site, **media: Any) -> Playground:
    page.emulate_media(**media)
    return Playground(page, here).open()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("theme", "size"),
    [
        pytest.param("light", (1440, 900), id="desktop-light", marks=pytest.mark.slow),
        pytest.param("dark", (1440, 900), id="desktop-dark", marks=pytest.mark.slow),
        pytest.param("light", (390, 844), id="phone"),
    ],
)
def test_axe_finds_nothing_in_any_state(
    page: Page, site: Callable[..., Site], theme: str, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    play = open_page(page, site(delay=0.03), color_scheme=theme)
    found = {"idle": violations(page)}
    phone = size[0] < 768
    if not phone:
        play.set(max_tokens=120)
    play.ask()
    play.wait_tokens(10)
    found["streaming"] = violations(page)
    if phone:
        for name in ("Core", "Layers", "Next token", "Sampling", "Run"):
            page.locator("#tabs").get_by_role("button", name=name).click()
            found[name] = violations(page)
        page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    play.wait_done()
    found["done"] = violations(page)
    page.get_by_role("button", name="Help and shortcuts").click()
    found["help"] = violations(page)
    page.keyboard.press("Escape")
    page.get_by_test_id("about-open").click()
    found["about"] = violations(page)
    assert {state: v for state, v in found.items() if v} == {}


def test_axe_finds_nothing_in_errors(page: Page, own_site: Callable[..., Site]) -> None:
    play = Playground(page, own_site(fail="no such folder")).open(ready=False)
    expect(play.notice).to_contain_text("The engine has failed")
    page.locator("#n-temperature").fill("hot")
    page.locator("#n-temperature").press("Enter")
    assert violations(page) == []


def test_nothing_is_wider_than_the_window(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site())
    assert play.overflow() <= 0
    play.set(max_tokens=40)
    play.ask("x" * 300)
    play.wait_tokens(40)
    play.wait_done()
    for width in (768, 900, 1024, 1280, 1360, 1920, 3840):
        page.set_viewport_size({"width": width, "height": 2160 if width == 3840 else 900})
        page.evaluate(TWO_FRAMES)
        assert play.overflow() <= 0, width


@pytest.mark.parametrize("width", [360, 600])
def test_nothing_is_wider_than_a_phone(page: Page, site: Callable[..., Site], width: int) -> None:
    page.set_viewport_size({"width": width, "height": 640})
    play = open_page(page, site())
    assert play.overflow() <= 0
    play.ask("x" * 300)
    play.wait_tokens(20)
    assert play.overflow() <= 0
    for name in ("Core", "Layers", "Next token", "Sampling", "Run"):
        page.locator("#tabs").get_by_role("button", name=name).click()
        assert play.overflow() <= 0, name
        sheet = page.locator(".sheet:visible")
        assert sheet.evaluate("(n) => n.scrollWidth - n.clientWidth") <= 0, name


@pytest.mark.parametrize("options", [{}, {"n_layers": 30, "n_heads": 9}, {"n_layers": 80}])
def test_table_rows_stand_on_core_rows(
    page: Page, site: Callable[..., Site], options: dict[str, int]
) -> None:
    play = open_page(page, site(**options))
    play.set(max_tokens=5)
    play.ask()
    play.wait_tokens(5)
    for height in (840, 1080, 1300):
        page.set_viewport_size({"width": 1440, "height": height})
        page.evaluate(TWO_FRAMES)
        rows = page.evaluate(ROWS)
        assert len(rows) >= 4
        for layer, name, row in rows:
            assert abs(name - row) <= 1, f"layer {layer} in a window {height} high"


def test_the_transcript_stands_on_the_gutter_of_the_core(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    here.ask()
    here.wait_tokens(2)

    def left(selector: str) -> float:
        return float(page.locator(selector).first.evaluate("(n) => n.getBoundingClientRect().left"))

    assert left(".answer") == left("#plot") == left(".field")


def test_nothing_moves_while_text_streams(page: Page, site: Callable[..., Site]) -> None:
    page.add_init_script(WATCH_SHIFTS)
    play = open_page(page, site(delay=0.01))
    play.set(max_tokens=250)
    play.ask()
    play.wait_tokens(3)
    page.evaluate("() => { window.shifts.length = 0 }")
    play.wait_tokens(250)
    play.wait_done()
    shifts = page.evaluate("() => window.shifts")
    assert sum(shift[0] for shift in shifts) < 0.0003, shifts


def test_the_core_grows_by_one_column_per_token_and_follows(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site())
    play.set(max_tokens=40)
    play.ask()
    play.wait_tokens(40)
    play.wait_done()
    page.evaluate(TWO_FRAMES)
    painted = page.evaluate(PAINTED)
    box = page.locator(".hair").evaluate("(n) => n.getBoundingClientRect().right")
    left = page.locator("#plot").evaluate("(n) => n.getBoundingClientRect().left")
    assert abs(painted - (box - left)) <= 3, "the newest column is under the amber frame"


def test_a_long_core_scrolls_and_can_be_followed_again(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.005, context=1024))
    play.set(max_tokens=500)
    play.ask()
    play.wait_tokens(220)
    follow = page.get_by_role("button", name="Follow")
    assert int(page.locator("#plot").evaluate("(n) => n.scrollLeft")) > 0
    page.locator("#plot").hover()
    page.mouse.wheel(-4000, 0)
    expect(follow).to_have_attribute("aria-pressed", "false")
    page.mouse.move(5, 5)
    at = page.locator("#plot").evaluate("(n) => n.scrollLeft")
    play.wait_tokens(260)
    assert page.locator("#plot").evaluate("(n) => n.scrollLeft") == at, "it stays where it was put"
    follow.click()
    expect(follow).to_have_attribute("aria-pressed", "true")
    assert page.locator("#plot").evaluate("(n) => n.scrollLeft") > at
    page.keyboard.press("Escape")
    play.wait_done()


def test_the_transcript_does_not_pull_back_a_reader(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site(delay=0.005, context=1024))
    play.set(max_tokens=600)
    play.ask()
    play.wait_tokens(200)
    turns = page.locator("#turns")
    turns.hover()
    page.mouse.wheel(0, -2000)
    play.wait_tokens(260)
    # The page may follow one more line in the frame in which the wheel turns, never after it.
    landed = turns.evaluate("(n) => n.scrollTop")
    assert landed <= play.answer.evaluate("(n) => parseFloat(getComputedStyle(n).lineHeight)")
    play.wait_tokens(320)
    assert turns.evaluate("(n) => n.scrollTop") == landed
    page.mouse.wheel(0, 20000)
    play.wait_tokens(390)
    assert turns.evaluate("(n) => n.scrollHeight - n.scrollTop - n.clientHeight") < 60
    page.keyboard.press("Escape")
    play.wait_done()


def test_everything_with_the_keyboard(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site(delay=0.02))
    expect(play.prompt).to_be_focused()
    page.get_by_text("Skip to the prompt").focus()
    page.keyboard.press("Enter")
    expect(play.prompt).to_be_focused()
    page.keyboard.type("A story")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("please")
    expect(play.prompt).to_have_value("A story\nplease")
    page.keyboard.press("Enter")
    play.wait_tokens(12)
    page.keyboard.press("Escape")
    play.wait_done()
    page.keyboard.press("ArrowUp")
    expect(play.prompt).to_have_value("A story\nplease")
    play.core.focus()
    last = len(play.numbers())
    page.keyboard.press("ArrowLeft")
    expect(play.core).to_have_attribute("aria-valuenow", str(last - 1))
    page.keyboard.press("Home")
    expect(play.core).to_have_attribute("aria-valuenow", "1")
    before = play.core.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowUp")
    expect(play.core).not_to_have_attribute("aria-valuetext", before or "")
    page.keyboard.press("3")
    expect(page.get_by_role("radio", name="Attention entropy")).to_be_checked()
    expect(play.core).to_have_attribute("aria-valuetext", re.compile(r"bit$"))
    page.keyboard.press("End")
    expect(play.core).to_have_attribute("aria-valuenow", str(last))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.locator("#s-temperature").focus()
    page.keyboard.press("Home")
    expect(page.locator("#n-temperature")).to_have_value("0.00")
    page.keyboard.press("Control+Shift+O")
    expect(page.locator("body")).to_have_attribute("data-phase", "empty")
    expect(play.prompt).to_be_focused()


def test_a_field_is_named_by_its_label_alone(page: Page, site: Callable[..., Site]) -> None:
    """Not by the button in it, too."""
    open_page(page, site())
    names = {"seed": "Seed", "max_tokens": "Max tokens", "stop-strings": "Stop strings"}
    for id, name in names.items():
        expect(page.locator(f"#{id}")).to_have_accessible_name(name)


def test_the_field_for_a_replacement_is_as_wide_as_the_draw(
    page: Page, site: Callable[..., Site]
) -> None:
    open_page(page, site()).write(n=3)
    field, draw = (page.locator(name).bounding_box() for name in ("#replace-token-text", ".strip"))
    assert field
    assert draw
    assert field["x"] + field["width"] == draw["x"] + draw["width"]


def test_the_keyboard_goes_on_where_a_button_can_no_longer_be_pressed(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.02, context=1024))
    play.write(n=3)
    play.set(max_tokens=600)
    play.regenerate.press("Enter")
    expect(play.stop).to_be_focused()
    play.stop.press("Enter")
    expect(play.regenerate).to_be_focused()
    older, newer = (page.locator(f"#{name}") for name in ("older", "newer"))
    older.press("Enter")
    expect(newer).to_be_focused()
    newer.press("Enter")
    expect(older).to_be_focused()
    play.set(max_tokens=8)
    page.get_by_label("Tokens a second").select_option("by step")
    play.regenerate.press("Enter")
    step = page.get_by_role("button", name="Step")
    for n in range(1, 9):
        step.press("Enter")
        play.wait_tokens(n)
    play.wait_done()
    expect(play.regenerate).to_be_focused()


def test_a_laptop_shows_everything_without_scrolling(page: Page, site: Callable[..., Site]) -> None:
    page.set_viewport_size({"width": 1366, "height": 720})
    play = open_page(page, site())
    play.set(max_tokens=20)
    play.ask()
    play.wait_tokens(20)
    play.wait_done()
    assert page.evaluate("() => document.documentElement.scrollHeight") <= 720
    for selector in ("#seed", "#send", "#capture", ".mass"):
        expect(page.locator(selector)).to_be_in_viewport(ratio=1)
    sampling = page.locator(".sampling")
    assert sampling.evaluate("(n) => n.scrollHeight - n.clientHeight") <= 1


def test_the_theme_follows_the_system_until_it_is_chosen(
    page: Page, site: Callable[..., Site]
) -> None:
    open_page(page, site(), color_scheme="dark")
    ground = "() => getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(ground)
    assert dark != light
    page.locator("#theme").click()
    assert page.evaluate(ground) == dark
    page.reload()
    assert page.evaluate(ground) == dark
    page.locator("#theme").click()
    assert page.evaluate(ground) == light


def test_forced_colours_leave_what_backgrounds_draw(page: Page, site: Callable[..., Site]) -> None:
    """Sliders, bars and shades. Texts and the focus have the reader's colours in either theme."""
    play = open_page(page, site(), color_scheme="dark", forced_colors="none")
    page.locator("#theme").click()
    play.write(n=20)
    page.emulate_media(forced_colors="active")
    expect(page.locator(".r-time .split")).to_have_css("background-image", re.compile("gradient"))
    page.evaluate(TWO_FRAMES)
    assert page.evaluate(SHADES) > 5
    slider = page.locator("#s-temperature")
    play.slide("temperature", 1)
    before = slider.screenshot()
    play.slide("temperature", 2)
    assert slider.screenshot() != before, "where it stands cannot be seen"
    colour, system, canvas = page.evaluate("""async () => {
      const { palette } = await import("/static/js/ui/palette.js");
      const probe = document.body.appendChild(document.createElement("i"));
      probe.style.color = "CanvasText";
      return [palette.ink, getComputedStyle(probe).color,
        getComputedStyle(document.documentElement).colorScheme];
    }""")
    assert colour == system
    assert canvas == "light dark"
    assert violations(page) == []


def test_the_whole_conversation_is_printed(page: Page, site: Callable[..., Site]) -> None:
    """Not what is in sight of it, nor panels; and dark on white from a dark page too."""
    play = open_page(page, site(delay=0.0, context=1024), color_scheme="light")
    page.locator("#theme").click()
    play.write(n=600)
    play.look.open("lens")
    page.emulate_media(media="print")
    page.evaluate(TWO_FRAMES)
    for part in (".said", ".answer .tok >> nth=0", ".answer .tok >> nth=599"):
        assert page.locator(part).evaluate("""(node) => {
          const { top, bottom } = node.getBoundingClientRect();
          const end = document.documentElement.scrollHeight - scrollY;
          const isSeen = node.checkVisibility({ visibilityProperty: true });
          return isSeen && top >= -scrollY && bottom <= end;
        }"""), part
    assert page.locator("#turns").evaluate("(node) => node.scrollHeight - node.clientHeight") <= 1
    for part in (".look", ".sampling", ".core", ".composer", ".top", ".message-edit >> nth=0"):
        expect(page.locator(part)).to_be_hidden()
    expect(page.locator("html")).to_have_css("color-scheme", "light")


def test_reduced_motion_stops_the_blinking(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site(delay=0.03), reduced_motion="reduce")
    play.ask()
    play.wait_tokens(3)
    running = "() => document.getAnimations().filter((a) => a.playState === 'running').length"
    assert page.evaluate(running) == 0
    page.keyboard.press("Escape")
    play.wait_done()


def test_tokens_are_in_no_live_region_and_progress_is_told(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.03))
    play.ask()
    play.wait_tokens(3)
    inside = "(n) => !!n.closest('[aria-live], [role=status], [role=log], [role=alert]')"
    assert not play.tokens.first.evaluate(inside)
    expect(page.locator("#live-status")).to_have_text("Generating")
    page.keyboard.press("Escape")
    expect(page.locator("#live-status")).to_have_text(re.compile(r"Answer complete, \d+ tokens"))


def test_a_phone_opens_how_a_word_was_chosen(page: Page, site: Callable[..., Site]) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    play = open_page(page, site())
    play.ask()
    play.wait_tokens(10)
    play.tokens.nth(3).click()
    expect(page.locator(".next")).to_be_visible()
    expect(page.locator("#tok-no")).to_have_text("4")
    page.keyboard.press("Escape")
    expect(page.locator(".next")).to_be_hidden()
    page.get_by_role("button", name="Open the core sample").click()
    expect(play.core).to_be_visible()


def test_the_transcript_follows_the_text(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site(context=1024))
    play.set(max_tokens=250)
    play.ask()
    play.wait_tokens(250)
    play.wait_done()
    end = page.locator("#turns").evaluate("(n) => n.scrollHeight - n.scrollTop - n.clientHeight")
    assert abs(end) <= 1
    expect(play.tokens.last).to_be_in_viewport()


def update_of(here: Site, place: int) -> str:
    """Return the text of what attention of the top layer adds at a token of the prompt "Tell"."""
    ids = prompt_ids(here.engine.tokenizer, messages=[Message("user", "Tell")])
    position = range(len(ids))[place]
    top = stats(position, ids[position], 8, 8, 1).layers[-1]
    return f"{top.attention / top.residual:.2f}"


def test_a_token_of_the_prompt_can_be_looked_at(page: Page, site: Callable[..., Site]) -> None:
    here = site()
    play = open_page(page, here)
    play.set(max_tokens=12)
    play.ask("Tell")
    play.wait_tokens(12)
    play.wait_done()
    page.locator("#plot").hover(position={"x": 4, "y": 200})
    expect(page.locator("#tok-no")).to_have_text("prompt 2")
    expect(page.locator("#tok-word")).to_have_text("T")
    expect(page.get_by_test_id("token-sub")).to_have_text("given, not chosen")
    expect(page.locator(".key")).to_be_hidden()
    cells = page.locator("#lrows tr:not(.end)").first.locator("td")
    expect(cells.first).to_have_text(update_of(here, 1))
    page.mouse.move(5, 5)
    expect(page.locator("#tok-no")).to_have_text("12")
    play.core.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    expect(play.core).to_have_attribute("aria-valuenow", "0")
    expect(play.core).to_have_attribute("aria-valuetext", re.compile(r"^prompt \d+, "))


def test_what_was_found_of_a_prompt_says_so_and_shows_no_layers(
    page: Page, site: Callable[..., Site]
) -> None:
    """Its layers were not computed again, so there is nothing to measure."""
    here = site(reused=1)
    play = open_page(page, here)
    play.set(max_tokens=12)
    play.ask("Tell")
    play.wait_tokens(12)
    play.wait_done()
    play.core.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_test_id("token-sub")).to_have_text("given, not chosen")
    cells = page.locator("#lrows tr:not(.end)").first.locator("td")
    expect(cells.first).to_have_text(update_of(here, -1))
    while page.locator("#tok-no").inner_text() != "prompt 1":
        page.keyboard.press("ArrowLeft")
    expect(page.get_by_test_id("token-sub")).to_have_text("given, found in cache")
    expect(page.locator("#tparts")).to_contain_text("Reused from the KV cache")
    expect(cells.first).to_have_text("")
