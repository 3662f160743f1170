"""Sliders that act while the text is written, and what the page says about each choice."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from gpu.sampling_params import GREEDY_BELOW
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions

ACKNOWLEDGED = """() => {
  window.acknowledged = [];
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (data) {
    if (!this.heard) {
      this.heard = true;
      this.addEventListener("message", ({ data }) => {
        const { event } = JSON.parse(data);
        if (event?.type === "updated") window.acknowledged.push(event);
      });
    }
    return send.call(this, data);
  };
}"""


@pytest.mark.quick
def test_a_slider_moved_while_writing_marks_the_first_token_it_applied_to(
    page: Page, play: Callable[..., Playground]
) -> None:
    page.add_init_script(f"({ACKNOWLEDGED})()")
    here = play(delay=0.03)
    here.set(temperature="0.7", max_tokens=200)
    here.ask()
    here.wait_tokens(10)
    here.slide("temperature", 1.2)
    mark = page.locator(".mark-change")
    expect(mark).to_have_text("temperature 0.7 → 1.2")
    acknowledged = page.evaluate("() => window.acknowledged")
    assert len(acknowledged) == 1
    assert acknowledged[0]["params"]["temperature"] == 1.2
    after = mark.evaluate(
        "(node) => node.parentNode.querySelector('.mark-change ~ .tok').dataset.i"
    )
    assert int(after) == acknowledged[0]["index"] >= 10
    expect(page.get_by_text("Changes take effect within 3 tokens")).to_be_visible()
    here.stop.click()
    here.wait_done()


DRAG = """async (slider, values) => {
  for (const value of values) {
    slider.value = value;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((resolve) => setTimeout(resolve, 60));
  }
}"""


def test_a_drag_is_told_once(play: Callable[..., Playground]) -> None:
    here = play(delay=0.03)
    here.set(temperature="0.5", max_tokens=200)
    here.ask()
    here.wait_tokens(5)
    here.page.locator("#s-temperature").evaluate(DRAG, [0.6, 0.8, 1.0, 1.3])
    last = here.page.locator(".mark-change").last
    expect(last).to_have_text("temperature 0.5 → 1.3")
    assert [t for t in here.page.locator(".mark-change").all_inner_texts() if t] == [
        "temperature 0.5 → 1.3"
    ]
    here.page.keyboard.press("Escape")
    here.wait_done()


def test_presets_set_all_sliders_and_reach_the_request(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    page.get_by_role("button", name="Greedy").click()
    expect(page.get_by_role("button", name="Greedy")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#n-temperature")).to_have_value("0.00")
    expect(page.locator("#s-temperature")).to_have_attribute("aria-valuetext", "0, greedy")
    here.set(max_tokens=3)
    here.ask()
    here.wait_tokens(3)
    expect(page.get_by_text("greedy: no draw")).to_be_visible()
    page.locator("#s-temperature").press("ArrowRight")
    expect(page.locator("#preset-note")).to_have_text("Greedy, edited")


def test_a_temperature_that_is_greedy_to_the_engine_is_so_to_the_page(
    page: Page, play: Callable[..., Playground]
) -> None:
    """It divides by none this small."""
    here = play()
    here.set(temperature=GREEDY_BELOW / 2, max_tokens=3)
    here.ask()
    here.wait_done()
    expect(page.get_by_text("greedy: no draw")).to_be_visible()


WRONG = [
    ("temperature", "-1", "Temperature must be a number from 0 to 10"),
    ("temperature", "warm", "Temperature must be a number from 0 to 10"),
    ("top_k", "1.5", "Top-k must be a whole number from 0"),
    ("top_p", "1.01", "Top-p must be a number from 0 to 1"),
    ("repetition_penalty", "0", "Repeat penalty must be a number from 0.1 to 10"),
    ("max_tokens", "0", "Max tokens must be a whole number from 1"),
    ("max_tokens", "1,5", "Max tokens must be a whole number from 1"),
    ("max_tokens", "1,0000", "Max tokens must be a whole number from 1"),
    ("seed", "18446744073709551616", "Seed must be a whole number"),
]


def test_wrong_numbers_are_marked_where_they_were_typed(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    for name, value, says in WRONG:
        box = here.box(name)
        box.fill(value)
        box.press("Enter")
        expect(box).to_have_attribute("aria-invalid", "true")
        expect(page.locator("#sampling-hint-text")).to_contain_text(says)
        box.fill("1")
        box.press("Enter")
        expect(box).not_to_have_attribute("aria-invalid", "true")


def test_a_comma_groups_digits_or_is_a_decimal_point(play: Callable[..., Playground]) -> None:
    """As the page itself writes the most that a field takes: 1,000 is not 1."""
    here = play()
    here.set(max_tokens="1,000", top_k=" 20 ", temperature="0,75")
    expect(here.box("max_tokens")).to_have_value("1000")
    expect(here.box("temperature")).to_have_value("0.75")


def test_penalties_are_folded_and_name_those_that_act(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    acting, fold = page.locator("#penalties-acting"), page.locator("#penalties summary")
    expect(acting).to_have_text("none")
    expect(page.locator("#n-presence_penalty")).to_be_hidden()
    fold.press("Enter")
    here.set(presence_penalty="0.5", frequency_penalty="-1")
    expect(page.locator("#s-frequency_penalty")).to_have_value("-1")
    fold.press("Enter")
    expect(acting).to_have_text("frequency -1.00, presence 0.50")
    expect(page.locator("#n-presence_penalty")).to_be_hidden()
    here.set(max_tokens=3)
    here.ask()
    here.wait_done()
    [params] = [each["params"] for each in here.messages.sent if each["type"] == "generate"]
    assert (params["frequency_penalty"], params["presence_penalty"]) == (-1, 0.5)
    page.get_by_role("button", name="Balanced").click()
    expect(acting).to_have_text("none")


@pytest.mark.quick
def test_a_refusal_of_the_server_marks_the_control(
    page: Page, play: Callable[..., Playground]
) -> None:
    """The page's own checks are switched off here, as an older page's might be."""
    page.add_init_script(
        "localStorage['tokenglass.settings'] = JSON.stringify({version: 1, capture: true,"
        " mode: 'chat', settings: {temperature: 99, top_k: 0, top_p: 1, min_p: 0,"
        " repetition_penalty: 1, max_tokens: 9, seed: '', stop: []}})"
    )
    here = play()
    here.ask("keep me")
    expect(here.notice).to_contain_text("Temperature must be")
    expect(page.locator("#n-temperature")).to_have_attribute("aria-invalid", "true")
    expect(here.prompt).to_have_value("keep me")
    expect(page.locator("body")).to_have_attribute("data-phase", "empty")


def test_stop_strings_end_the_text(play: Callable[..., Playground]) -> None:
    here = play()
    here.page.get_by_role("button", name="Greedy").click()
    here.set(**{"stop-strings": "fox named, never", "max_tokens": 200})
    here.ask()
    here.wait_done()
    until(here.page, lambda: "stop string" in here.stats.inner_text(), "the reason")
    assert "little" in here.text()
    assert "fox named" not in here.text()


@pytest.mark.quick
def test_candidates_show_what_each_filter_did(page: Page, play: Callable[..., Playground]) -> None:
    here = play()
    here.set(temperature="1", top_k="5", top_p="1", min_p="0", max_tokens=4, seed=3)
    here.ask()
    here.wait_tokens(4)
    here.wait_done()
    expect(page.locator("#tok-no")).to_have_text("4")
    rows = page.get_by_test_id("candidates").locator("li:not(:empty)")
    cut = page.locator(".cands .cut")
    assert page.locator(".cands .pick-row").count() == 1
    assert rows.count() - cut.count() == 5, "top-k 5 keeps five"
    assert set(cut.locator(".c").all_inner_texts()) == {"top-k"}
    kept = [
        float(t.replace("<", "")) for t in page.locator(".cands li:not(.cut) .n").all_inner_texts()
    ]
    assert abs(sum(kept) - 100) < 0.5
    expect(page.locator(".mass")).to_contain_text("5 of")


def test_a_token_shows_its_numbers_on_hover_and_on_focus(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    here.set(max_tokens=30, seed=1)
    here.ask()
    here.wait_tokens(30)
    here.wait_done()
    third = here.tokens.nth(2)
    third.hover()
    expect(page.locator("#tok-no")).to_have_text("3")
    expect(page.get_by_test_id("token-sub")).to_have_text(
        re.compile(r"p [\d.e-]+ · \d+(st|nd|rd|th) choice")
    )
    page.mouse.move(0, 0)
    expect(page.locator("#tok-no")).to_have_text("30")
    third.click()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tok-no")).to_have_text("4")
    expect(here.tokens.nth(3)).to_be_focused()


def test_capture_off_leaves_the_plate_blank_and_measures_the_difference(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    expect(page.get_by_test_id("cost")).to_contain_text("off: not measured yet")
    here.set(max_tokens=40)
    here.ask()
    here.wait_tokens(40)
    here.wait_done()
    page.get_by_role("switch").click()
    here.regenerate.click()
    expect(page.locator("#version")).to_have_text("2/2")
    here.wait_tokens(40)
    here.wait_done()
    expect(page.get_by_text("Capture was off, so no layers were measured.")).to_be_visible()
    expect(page.get_by_text("Not measured: capture was off for this token.")).to_be_visible()
    expect(page.get_by_test_id("cost")).to_have_text(
        re.compile(r"on: [\d.,]+ tok/s.*off: [\d.,]+ tok/s", re.S)
    )


class NoTimestamps(FakeEngine):
    """A device that cannot take the time inside a pass, or of the whole step."""

    def _stats(self, position: int, id: int, n_rows: int) -> Any:
        stats = super()._stats(position, id, n_rows)
        layers = tuple(replace(layer, attention_ms=None, mlp_ms=None) for layer in stats.layers)
        return replace(stats, layers=layers, embed_ms=None, head_ms=None)


class TimesSomeSteps(FakeEngine):
    """A device that times the layers of a few steps: here each time the one before."""

    def _stats(self, position: int, id: int, n_rows: int) -> Any:
        return replace(super()._stats(position, id, n_rows), timed_at=max(0, position - 1))


def test_layer_times_of_another_token_are_told_beside_the_time_of_this_one(
    page: Page, own_site: Callable[..., Site]
) -> None:
    """They are no parts of it, and may be longer."""
    here = Playground(page, own_site(load=lambda _progress: TimesSomeSteps(FakeOptions()))).open()
    here.write(n=8)
    here.tokens.nth(5).click()
    token = here.messages.events("token")[5]
    layers = token["stats"]["layers"]
    parts = sum(layer["attention_ms"] + layer["mlp_ms"] for layer in layers)
    whole = parts + token["stats"]["embed_ms"] + token["stats"]["head_ms"]
    expect(page.locator("#lay-sub")).to_have_text(
        f"timed at token 5: {whole:.1f} ms, this token: {token['times']['gpu']:.1f} ms"
    )


def test_a_device_without_timestamps_is_told_and_nothing_is_made_up(
    page: Page, own_site: Callable[..., Site]
) -> None:
    here = Playground(page, own_site(load=lambda _progress: NoTimestamps(FakeOptions()))).open()
    here.set(max_tokens=8)
    here.ask()
    here.wait_tokens(8)
    here.wait_done()
    expect(page.locator("#totals")).to_contain_text("No GPU time per layer")
    first = page.locator("#lrows tr:not(.end)").first.locator("td")
    assert first.nth(0).inner_text() != ""
    assert first.nth(4).inner_text() == ""
    page.get_by_text("GPU time", exact=True).click()
    expect(page.locator("#blank")).to_contain_text("No GPU time per layer")
    expect(page.locator("#val")).to_contain_text("not measured")
    expect(page.locator("#hi")).to_have_text("")


def test_fields_stay_on_a_line_beside_a_scroll_bar(play: Callable[..., Playground]) -> None:
    """The panel has one as soon as the penalties are unfolded."""
    page = play().page
    page.locator(".misc").evaluate("(box) => { box.style.width = `${box.offsetWidth - 15}px` }")
    fields = page.locator("#seed, #max_tokens, #stop-strings")
    assert (
        len(set(fields.evaluate_all("(all) => all.map((f) => f.getBoundingClientRect().top)"))) == 1
    )
    labels = page.locator(".misc > label:not(.wide)")
    assert labels.evaluate_all("(all) => all.every((l) => l.scrollWidth <= l.clientWidth)")
