"""Reaching in: what is sent, what is shown of it, and that it can be taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Error, Page, expect

from e2e.interventions.reach import ReachPanel
from e2e.look.test_looks import violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from gpu import Interventions, ScheduledUpdate

ASK = "Tell me a story"
N = 30
HEAD_OFF = {"heads": [{"layer": 2, "head": 3, "factor": 0}]}


@pytest.fixture
def reach_panel(page: Page, site: Callable[..., Site]) -> ReachPanel:
    return Playground(page, site()).open().reach


@pytest.fixture
def live(page: Page, site: Callable[..., Site]) -> Iterator[ReachPanel]:
    """A page on which a long answer is being written."""
    found = Playground(page, site(delay=0.03)).open().reach
    found.play.set(max_tokens=400, seed=5)
    found.play.ask(ASK)
    found.play.wait_tokens(5)
    yield found.open()
    page.evaluate("async () => (await import('/static/js/turns/stop.js')).stop()")


# ---- the grid --------------------------------------------------------------------------------


@pytest.mark.quick
def test_a_head_is_off_from_the_token_that_the_engine_names(live: ReachPanel) -> None:
    share = live.page.locator(".rc-word")
    expect(share).to_be_hidden()  # its column has no numbers yet
    live.cell("head 2.3").click()
    live.wait_asked(HEAD_OFF)
    expect(live.cell("head 2.3")).to_have_accessible_name("layer 2, head 3: off")
    event = until(live.page, live.acknowledged, "the acknowledgement")[0]
    assert event["reach"] == HEAD_OFF
    index = event["index"]
    live.play.wait_tokens(index + 20)
    mark = live.play.answer.locator(".mark-change")
    expect(mark).to_have_text("head 2.3 off")
    expect(mark).to_have_attribute("data-at", str(index))
    expect(live.says).to_have_text(f"Acts from token {index + 1} on.")
    undisturbed, off = (
        engine_tokens(live, updates)[: index + 20] for updates in ((), (at(event),))
    )
    assert live.ids()[: index + 20] == off
    assert off[:index] == undisturbed[:index]
    assert off[index:] != undisturbed[index:]


def at(event: dict[str, Any]) -> ScheduledUpdate:
    """An acknowledged change, for the script of a run."""
    return ScheduledUpdate(
        event["index"], interventions=msgspec.convert(event["reach"], Interventions)
    )


def engine_tokens(reach_panel: ReachPanel, updates: tuple[ScheduledUpdate, ...] = ()) -> list[int]:
    """The ids that the engine writes for the first request, with no changes but the script's."""
    params = reach_panel.requests()[0]["params"]
    return [token.id for token in reach_panel.play.site.reference(ASK, updates=updates, **params)]


def test_whole_layers_are_both_halves(live: ReachPanel) -> None:
    live.cell("layer 4").click()
    halves = {"attention": [{"layer": 4, "factor": 0}], "mlp": [{"layer": 4, "factor": 0}]}
    live.wait_asked(halves)
    for place in ("attention 4", "mlp 4", "layer 4"):
        expect(live.cell(place)).to_have_accessible_name(name_of(place) + ": off")
    expect(live.cell("head 4.0")).to_have_attribute("data-moot", "")
    live.cell("mlp 4").click()
    live.wait_asked({"attention": [{"layer": 4, "factor": 0}]})
    expect(live.cell("layer 4")).to_have_accessible_name("layer 4: halves differ")
    marks = live.play.answer.locator(".mark-change")
    expect(marks.last).to_contain_text("attention 4 off")


def name_of(place: str) -> str:
    kind, layer = place.split(" ")
    part = {"attention": ", attention", "mlp": ", MLP", "layer": ""}[kind]
    return f"layer {layer}{part}"


def test_a_drag_scales_is_sent_sparingly_and_is_one_step_back(live: ReachPanel) -> None:
    box = live.cell("attention 5").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    live.page.mouse.move(x, y)
    live.page.mouse.down()
    for step in range(1, 41):
        live.page.mouse.move(x - step, y)
    live.page.mouse.up()
    live.wait_asked({"attention": [{"layer": 5, "factor": 0.5}]})
    assert len(live.asked()) < 20
    expect(live.cell("attention 5")).to_have_accessible_name("layer 5, attention: × 0.5")
    expect(live.factor).to_have_value("0.5")
    live.button("Undo").click()
    live.wait_asked({})
    expect(live.button("Undo")).to_be_disabled()
    live.button("Redo").click()
    live.wait_asked({"attention": [{"layer": 5, "factor": 0.5}]})


def test_the_keyboard_alone_walks_switches_scales_and_types(reach_panel: ReachPanel) -> None:
    reach_panel.open()
    press = reach_panel.page.keyboard.press
    reach_panel.cell("head 7.0").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        press(key)
    expect(reach_panel.cell("head 5.1")).to_be_focused()
    expect(reach_panel.panel.locator(".rc-name")).to_have_text("layer 5, head 1")
    press("Space")
    expect(reach_panel.cell("head 5.1")).to_have_accessible_name("layer 5, head 1: off")
    press("Space")
    expect(reach_panel.cell("head 5.1")).to_have_accessible_name("layer 5, head 1: unchanged")
    for key in ("+", "+", "-"):
        press(key)
    expect(reach_panel.cell("head 5.1")).to_have_accessible_name("layer 5, head 1: × 1.1")
    reach_panel.page.keyboard.type("3.5")
    expect(reach_panel.factor).to_be_focused()
    press("Enter")
    expect(reach_panel.cell("head 5.1")).to_be_focused()
    expect(reach_panel.cell("head 5.1")).to_have_accessible_name("layer 5, head 1: × 3.5")
    press("End")
    expect(reach_panel.cell("layer 0")).to_be_focused()
    press("ArrowUp")
    press("Enter")
    expect(reach_panel.cell("mlp 1")).to_have_accessible_name("layer 1, MLP: off")
    press("Delete")
    expect(reach_panel.cell("mlp 1")).to_have_accessible_name("layer 1, MLP: unchanged")
    expect(reach_panel.page.get_by_role("tab", name="Reach")).to_have_accessible_name("Reach 1")
    reach_panel.panel.get_by_role("slider", name="layer 1").focus()
    press("ArrowLeft")
    expect(reach_panel.cell("layer 1")).to_have_accessible_name("layer 1: × 0.95")
    reach_panel.cell("layer 1").focus()
    for _ in range(2):
        press("Control+z")
    expect(reach_panel.cell("layer 1")).to_have_accessible_name("layer 1: off")
    press("Control+Shift+Z")
    expect(reach_panel.cell("layer 1")).to_have_accessible_name("layer 1: unchanged")


@pytest.mark.parametrize("text", ["nine", "8.5", "-9", ""])
def test_a_factor_that_the_server_would_refuse_is_not_sent(
    reach_panel: ReachPanel, text: str
) -> None:
    reach_panel.open()
    reach_panel.cell("head 2.3").click()
    reach_panel.factor.fill(text)
    reach_panel.factor.press("Enter")
    expect(reach_panel.factor).to_have_attribute("aria-invalid", "true")
    expect(reach_panel.factor).to_have_attribute("title", "factor must be a number from -8 to 8")
    expect(reach_panel.cell("head 2.3")).to_have_accessible_name("layer 2, head 3: off")


def test_a_large_model_is_a_grid_of_reach_too(page: Page, site: Callable[..., Site]) -> None:
    reach_panel = Playground(page, site(n_layers=32, n_heads=32)).open().reach.open()
    # heads, attention, MLP, layer; the column of shares is hidden without numbers
    assert reach_panel.panel.get_by_role("gridcell").count() == 32 * 35
    reach_panel.cell("head 31.0").focus()
    page.keyboard.press("End")
    expect(reach_panel.cell("layer 0")).to_be_in_viewport()
    reach_panel.cell("head 17.31").click()
    expect(reach_panel.cell("head 17.31")).to_have_accessible_name("layer 17, head 31: off")
    for width in (360, 768, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        assert reach_panel.play.overflow() <= 0
        wide = "(node) => node.scrollWidth - node.clientWidth"
        assert page.locator(".instrument.reach").evaluate(wide) <= 0


# ---- steering --------------------------------------------------------------------------------


@pytest.mark.slow
def test_vectors_are_written_scaled_muted_and_removed(live: ReachPanel) -> None:
    live.button("Add vector").click()
    toward = live.panel.get_by_role("textbox", name="Steer toward")
    toward.fill("the sea")
    toward.press("Enter")
    steer = {"layer": 3, "toward": "the sea", "away": "", "strength": 0.5}
    live.wait_asked({"steer": [steer]})
    strength = live.panel.get_by_role("textbox", name="Strength, value")
    strength.fill("1.5")
    strength.press("Enter")
    live.wait_asked({"steer": [{**steer, "strength": 1.5}]})
    live.panel.get_by_role("slider", name="Layer", exact=True).fill("6")
    strong = {**steer, "strength": 1.5, "layer": 6}
    live.wait_asked({"steer": [strong]})
    expect(live.play.answer.locator(".mark-change").last).to_contain_text("steer +1.5 at layer 6")
    live.button("at sea").click()
    until(live.page, lambda: len(live.asked()[-1].get("steer", ())) == 2, "two vectors")
    live.panel.get_by_role("button", name="Mute").first.click()
    until(live.page, lambda: len(live.asked()[-1]["steer"]) == 1, "one vector")
    assert live.asked()[-1]["steer"][0]["toward"] != "the sea"
    live.panel.get_by_role("button", name="Mute").first.click()
    live.panel.get_by_role("button", name="Remove this vector").last.click()
    live.wait_asked({"steer": [strong]})


def test_a_vector_without_a_text_is_not_sent(live: ReachPanel) -> None:
    live.button("Add vector").click()
    live.cell("head 0.0").click()
    live.wait_asked({"heads": [{"layer": 0, "head": 0, "factor": 0}]})


def test_what_the_server_refuses_is_said_in_the_panel(live: ReachPanel) -> None:
    live.button("Add vector").click()
    toward = live.panel.get_by_role("textbox", name="Steer toward")
    toward.fill("Mia " * 300)
    toward.press("Enter")
    expect(live.says).to_contain_text("toward must have 1 to 256 tokens")
    expect(live.says).to_have_attribute("data-tone", "bad")
    assert live.acknowledged() == []
    live.button("Undo").click()
    expect(live.says).not_to_have_attribute("data-tone", "bad")


# ---- patching --------------------------------------------------------------------------------


def test_a_token_of_the_prompt_is_patched_in_a_new_version(reach_panel: ReachPanel) -> None:
    reach_panel.write(N).open()
    reach_panel.page.evaluate("async () => (await import('/static/js/view.js')).pin(-3)")
    expect(reach_panel.panel.locator(".rc-here b")).to_contain_text("prompt")
    position = reach_panel.prompt_length() - 3
    reach_panel.choose_token("the old forest", 2)
    patch = {"layer": 0, "position": position, "prompt": "the old forest", "token": 2}
    expect(reach_panel.panel.locator(".rc-patch")).to_contain_text("acts when run again")
    reach_panel.again(2, N)
    assert reach_panel.requests()[-1]["reach"] == {"patch": [patch]}
    assert reach_panel.requests()[-1]["messages"] == reach_panel.requests()[0]["messages"]
    assert str(reach_panel.requests()[-1]["params"]["seed"]) == "5"
    expect(reach_panel.panel.locator(".rc-patch")).not_to_contain_text("acts when run again")
    expect(reach_panel.play.answer.locator(".mark-change")).to_have_text("patch at layer 0")


def test_a_patch_waits_while_the_text_is_written(live: ReachPanel) -> None:
    live.page.evaluate("async () => (await import('/static/js/view.js')).pin(2)")
    live.choose_token("the old forest", 1)
    expect(live.says).to_have_text("The prompt is computed already; press Run again to patch it.")
    live.cell("head 2.3").click()
    live.wait_asked(HEAD_OFF)
    position = live.prompt_length() + 2
    live.button("Run again").click()
    branch = live.wait_requests(2)
    assert len(branch["ids"]) == position + 1, "from the patched token on"
    patch = {"layer": 0, "position": position, "prompt": "the old forest", "token": 1}
    assert branch["reach"] == HEAD_OFF | {"patch": [patch]}
    assert branch["ids"][position] == live.ids(0)[2], "the same token stands there"


def test_another_prompt_has_no_patches(reach_panel: ReachPanel) -> None:
    reach_panel.write(N).open()
    reach_panel.choose_token("the old forest", 1)
    reach_panel.cell("head 2.3").click()
    reach_panel.page.keyboard.press("Escape")
    reach_panel.play.ask("Another one")
    assert reach_panel.wait_requests(2)["reach"] == HEAD_OFF


# ---- taking it back --------------------------------------------------------------------------


def test_after_a_reset_the_same_seed_gives_the_same_text(reach_panel: ReachPanel) -> None:
    reach_panel.write(N).open()
    reach_panel.cell("head 2.3").click()
    expect(reach_panel.says).to_have_text("Acts on the next answer, including its prompt.")
    reach_panel.again(2, N)
    assert reach_panel.requests()[-1]["reach"] == HEAD_OFF
    assert reach_panel.ids(1) != reach_panel.ids(0)
    expect(reach_panel.says).to_have_text("Acts from the first token on.")
    expect(reach_panel.twin).to_contain_text("version 1")
    reach_panel.button("Reset").click()
    expect(reach_panel.says).to_have_text("Reset. Run again writes the original text.")
    reach_panel.again(3, N)
    assert "reach" not in reach_panel.requests()[-1]
    assert reach_panel.ids(2) == reach_panel.ids(0)
    expect(reach_panel.twin).to_have_text(f"Same {N} tokens as version 1")
    expect(reach_panel.note).to_be_hidden()


def test_undone_while_writing_it_is_left_alone_again(live: ReachPanel) -> None:
    live.cell("head 2.3").click()
    until(live.page, lambda: len(live.acknowledged()) == 1, "the first acknowledgement")
    live.cell("head 2.3").focus()
    live.page.keyboard.press("Control+z")
    until(live.page, lambda: len(live.acknowledged()) == 2, "the second acknowledgement")
    first, second = live.acknowledged()
    assert second["reach"] == {}
    n = second["index"] + 20
    live.play.wait_tokens(n)
    told = live.play.answer.locator(".mark-change")
    if second["index"] > first["index"]:
        expect(told.last).to_have_text("reset")
    undisturbed = engine_tokens(live)
    assert live.ids()[:n] == engine_tokens(live, (at(first), at(second)))[:n]
    assert live.ids()[: first["index"]] == undisturbed[: first["index"]]
    assert live.ids()[second["index"] : n] == undisturbed[second["index"] : n]


def test_nobody_forgets_it(reach_panel: ReachPanel) -> None:
    """The answer says so on the page, after a reload too; one press leads back."""
    reach_panel.open().cell("head 2.3").click()
    reach_panel.page.keyboard.press("Escape")
    expect(reach_panel.note).to_have_text("1 intervention")
    expect(reach_panel.note).not_to_have_attribute("data-acts", "")
    reach_panel.write(N)
    assert reach_panel.requests()[-1]["reach"] == HEAD_OFF
    expect(reach_panel.note).to_have_attribute("data-acts", "")
    expect(reach_panel.note).to_have_attribute("title", "Active now: head 2.3 off")
    reach_panel.page.reload()
    reach_panel.settle(N)
    expect(reach_panel.note).to_have_attribute("data-acts", "")
    expect(reach_panel.play.answer.locator(".mark-change")).to_have_text("head 2.3 off")
    reach_panel.note.click()
    expect(reach_panel.cell("head 2.3")).to_have_accessible_name("layer 2, head 3: off")
    reach_panel.button("Reset").click()
    reach_panel.page.keyboard.press("Escape")
    expect(reach_panel.note).to_have_text("Had 1 intervention")


# ---- how it looks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theme", "size"),
    [
        ("dark", (1440, 900)),
        pytest.param("light", (360, 740), marks=pytest.mark.slow),
        pytest.param("light", (900, 800), marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_with_everything_in_use(
    page: Page, site: Callable[..., Site], theme: Any, size: tuple[int, int]
) -> None:
    page.emulate_media(color_scheme=theme)
    reach_panel = Playground(page, site()).open().reach.write(N).open()
    page.set_viewport_size({"width": size[0], "height": size[1]})
    reach_panel.cell("layer 4").click()
    reach_panel.cell("head 2.3").focus()
    page.keyboard.press("+")
    reach_panel.button("at sea").click()
    reach_panel.panel.get_by_role("button", name="Mute").click()
    expect(reach_panel.panel.locator(".rc-tokens li").first).to_be_visible()
    found = {"steer": violations(page)}
    reach_panel.choose_token("the old forest", 1)
    found["patch"] = violations(page)
    assert reach_panel.play.overflow() <= 0
    reach_panel.again(2, N)
    found["written again"] = violations(page)
    page.keyboard.press("Escape")
    expect(reach_panel.note).to_be_visible()
    found["note"] = violations(page)
    assert {state: v for state, v in found.items() if v} == {}


# ---- as data ---------------------------------------------------------------------------------


def call(page: Page, module: str, name: str, *arguments: Any) -> Any:
    return page.evaluate(
        "async ([module, name, args]) => (await import(`/static/js/${module}.js`))[name](...args)",
        [module, name, list(arguments)],
    )


HEAD_HALF = {"heads": [{"layer": 2, "head": 3, "factor": 0.5}]}
SEA = {"steer": [{"layer": 4, "toward": "sea", "away": "", "strength": 1.5}]}
LAYER_2_OFF = {"attention": [{"layer": 2, "factor": 0}], "mlp": [{"layer": 2, "factor": 0}]}
TONE = {"loras": [{"name": "tone", "strength": 1}]}
PATCH = {"patch": [{"layer": 3, "position": 7, "prompt": "other", "token": 2}]}
MOVES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, HEAD_OFF, "head 2.3 off"),
    (HEAD_OFF, HEAD_HALF, "head 2.3 × 0.5"),
    (HEAD_OFF | SEA, SEA, "head 2.3 on"),
    (HEAD_OFF, HEAD_OFF | SEA, "steer +1.5 at layer 4"),
    (HEAD_OFF | SEA, HEAD_OFF, "steer +1.5 at layer 4 removed"),
    ({}, LAYER_2_OFF, "layer 2 off"),
    (LAYER_2_OFF, {"mlp": [{"layer": 2, "factor": 0}]}, "MLP 2 off"),
    ({}, PATCH | SEA, "steer +1.5 at layer 4, patch at layer 3"),
    (HEAD_OFF | SEA, {}, "reset"),
    ({}, {"heads": [{"layer": 0, "head": 0, "factor": -2}]}, "head 0.0 × −2"),
    ({}, {"heads": [{"layer": 0, "head": h, "factor": 0} for h in range(5)]}, "3 more"),
    ({}, {"heads": [{"layer": 0, "head": 0, "factor": 1}]}, ""),
    ({}, TONE, "adapter tone on"),
    (TONE, {"loras": [{"name": "tone", "strength": -0.5}]}, "adapter tone × −0.5"),
    (TONE | HEAD_OFF, HEAD_OFF, "adapter tone off"),
    (TONE, {}, "adapter tone off"),
    (TONE | HEAD_OFF, {}, "reset"),
]


@pytest.mark.quick
def test_what_a_change_did_is_said_in_few_words(reach_panel: ReachPanel) -> None:
    for before, after, words in MOVES:
        told = call(
            reach_panel.page,
            "interventions/interventions",
            "describeInterventionChange",
            before,
            after,
        )
        assert told == words or (words == "3 more" and told.endswith(" and 3 more"))


@pytest.mark.quick
def test_a_smaller_model_keeps_what_it_has(reach_panel: ReachPanel) -> None:
    setting = {
        "factors": {"head 2.3": 0, "head 2.9": 0, "mlp 7": 0.5, "attention 1": 0},
        "steer": [{"layer": 1}, {"layer": 6}],
        "patch": [{"layer": 4}],
        "loras": {"tone": 1, "other": 0.5},
    }
    sizes = {"n_layers": 4, "n_heads": 8, "loras": [{"name": "tone"}]}
    assert call(
        reach_panel.page, "interventions/intervention-wire", "fitToModel", setting, sizes
    ) == {
        "factors": {"head 2.3": 0, "attention 1": 0},
        "steer": [{"layer": 1}],
        "patch": [],
        "loras": {"tone": 1},
    }


def test_a_setting_of_another_version_loses_places_that_are_none(loaded: Page) -> None:
    kept = {"factors": {"head 2.3": 0, "query 2": 0.5, "layer 1": 0}}
    setting = call(loaded, "interventions/intervention-store", "newStore", kept)["setting"]
    assert setting == {"factors": {"head 2.3": 0}, "steer": [], "patch": [], "loras": {}}
    assert call(loaded, "interventions/intervention-wire", "toWire", setting) == HEAD_OFF
    with pytest.raises(Error, match="is no place of an intervention"):
        call(loaded, "interventions/intervention-wire", "toWire", setting | kept)


NONE: dict[str, Any] = {}
GOES_ON = [
    # ran, from, last, reach now, what is asked for
    ([], 8, 8, NONE, {}),
    ([], 8, 8, HEAD_OFF, {"reached": [{"first": 0, "reach": {}}]}),
    ([], 6, 8, HEAD_OFF, {"reached": [{"first": 6, "reach": HEAD_OFF}]}),
    ([(3, HEAD_OFF)], 8, 8, NONE, {"reached": [{"first": 3, "reach": HEAD_OFF}]}),
    ([(3, HEAD_OFF), (9, NONE)], 8, 8, NONE, {"reached": [{"first": 3, "reach": HEAD_OFF}]}),
    # a patch that has acted is told again; a new one is computed from where it is
    ([(0, PATCH)], 20, 20, PATCH, {"reached": [{"first": 0, "reach": PATCH}]}),
    ([], 20, 20, PATCH, {"reached": [{"first": 7, "reach": PATCH}]}),
]


@pytest.mark.parametrize(("ran", "first", "last", "now", "asked"), GOES_ON)
def test_a_text_that_goes_on_says_what_acted_before(
    reach_panel: ReachPanel, ran: list[Any], first: int, last: int, now: Any, asked: Any
) -> None:
    acted = [{"first": at, "reach": reach} for at, reach in ran]
    assert (
        call(
            reach_panel.page,
            "interventions/interventions",
            "continuedSpans",
            acted,
            first,
            last,
            now,
        )
        == asked
    )


@pytest.mark.quick
def test_what_acts_alike_is_the_same(reach_panel: ReachPanel) -> None:
    def same(a: object, b: object) -> bool:
        return bool(
            call(reach_panel.page, "interventions/interventions", "sameInterventions", a, b)
        )

    two = [{"layer": 1, "head": 0, "factor": 0}, {"layer": 0, "head": 2, "factor": 0.5}]
    assert same({"heads": two}, {"heads": two[::-1], "mlp": []})
    assert same({}, {"heads": [{"layer": 0, "head": 0, "factor": 1}]})
    assert same(SEA, {"steer": [{"layer": 4, "toward": "sea", "strength": 1.5}]})
    assert not same(SEA, {"steer": [{"layer": 4, "toward": "sea", "strength": 1.6}]})
    assert not same(
        {"attention": [{"layer": 1, "factor": 0}]}, {"mlp": [{"layer": 1, "factor": 0}]}
    )
