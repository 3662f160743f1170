"""Experts: what a run used them for, in all layers; what is counted, drawn and told of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from e2e.chat.test_retention import small
from e2e.look.panel import LookPanel
from e2e.look.test_look import wrote
from e2e.playground import Playground
from e2e.site import Site, fake_site
from tests.app.fake_sampler import routes

N, LAYERS = 6, 8
"""Experts of the fake model, and its layers: the first has none."""


def counted(positions: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """(LAYERS, N): how often each expert was given a token, and the sum of its gates."""
    times, gates = np.zeros((LAYERS, N), int), np.zeros((LAYERS, N))
    for position in positions:
        for route in routes(position, LAYERS, N):
            times[route.layer, list(route.experts)] += 1
            gates[route.layer, list(route.experts)] += route.gates
    return times, gates


def evenness(times: np.ndarray) -> float:
    shares = times[times > 0] / times.sum()
    return float(-np.sum(shares * np.log(shares)) / np.log(len(times)))


def n_prompt(page: Page) -> int:
    return int(
        page.evaluate(
            "async () => (await import('/static/js/view.js')).view.answer.segments[0].prompt.length"
        )
    )


def field(page: Page) -> Locator:
    return page.get_by_role("slider", name="Expert")


def says(page: Page) -> Locator:
    return page.locator(".ex-summary:visible")


# ---- the numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "even", "never", "busiest", "load"),
    [
        ([3, 0, 0, 0], 0, [1, 2, 3], 0, 4),
        ([2, 2, 2, 2], 1, [], 0, 1),
        ([1, 2, 1, 0], 0.75, [3], 1, 2),
        ([0, 0], None, [0, 1], None, None),
        ([5], None, [], 0, 1),
    ],
)
def test_how_choices_are_spread(
    call: Callable[..., Any],
    given: list[int],
    even: float | None,
    never: list[int],
    busiest: int | None,
    load: float | None,
) -> None:
    """0.75: half the choices one, a quarter each of two others: 1.5 of 2 bits."""
    found = call("turns/expert-use", "loadBalance", given)
    assert found["evenness"] == (None if even is None else pytest.approx(even))
    assert (found["choices"], found["used"]) == (sum(given), len(given) - len(never))
    assert (found["never"], found["busiest"], found["load"]) == (never, busiest, load)


# Events as a server tells them, of an answer that is continued and of a branch of it: how many
# tokens are counted, and how often expert `position` of layer 1 was chosen, for each of them.
ANSWERS = """async () => {
  const { Answer } = await import("/static/js/turns/answer.js");
  const stats = (position) => ({
    position, layers: [], routes: [{ layer: 1, experts: [position], gates: [0.5] }],
  });
  const params = { temperature: 1 };
  const accepted = (n, texts = []) => ({
    type: "accepted", params, capture: true, position: 0, context: 64, texts,
    prompt: Array.from({ length: n }, (_, id) => ({ id, text: "" })),
  });
  const prefill = (from, to) => ({
    type: "prefill", done: to, total: to, reused: 0, ms: 1, gpu_ms: null, kv_blocks: 1,
    stats: Array.from({ length: to - from }, (_, i) => stats(from + i)),
  });
  const token = (index, position) => ({
    type: "token", index, id: 9, text: "x", kv_blocks: 1, candidates: [], logprob: -1,
    stats: stats(position),
  });
  const run = (answer, events, ...how) => {
    const segment = answer.begin(`${Math.random()}`, { params }, ...how);
    events.forEach((event, i) => answer.applyEvent(segment, i + 1, event));
    return segment;
  };
  const told = ({ use }) => [use.tokens, use.of(1, 12).given];
  const one = new Answer();
  run(one, [accepted(3), prefill(0, 3), ...[0, 1, 2, 3].map((i) => token(i, 2 + i))]);
  const whole = told(one);
  const branch = { at: 2, put: [{ id: 7, logprob: -1, rank: 0, eos: false, candidates: null }] };
  const parted = new Answer();
  run(parted, [
    accepted(6, ["x", "x", "y"]), prefill(1, 6), ...[0, 1].map((i) => token(i, 5 + i)),
  ], { of: 0, was: { id: 9, text: "x", logprob: -1 }, ...branch }, one);
  run(one, [accepted(7), prefill(0, 7), token(0, 6), token(1, 7)]);
  return { whole, parted: told(parted), continued: told(one) };
}"""


@pytest.mark.quick
def test_every_row_counts_once(loaded: Page) -> None:
    """Though the prompt's last row is told with the first token too, and a continued answer and a
    branch read again what was read."""
    found = loaded.evaluate(ANSWERS)

    def ones(n: int) -> list[Any]:
        return [n, [1] * n + [0] * (12 - n)]

    assert found == {"whole": ones(6), "parted": ones(7), "continued": ones(8)}


@pytest.mark.quick
def test_old_steps_lose_which_experts_they_used_and_keep_the_counts(loaded: Page) -> None:
    found = loaded.evaluate(
        """async () => {
          const { Retention } = await import("/static/js/turns/retention.js");
          const kept = new Retention(3000, 1);
          const events = Array.from({ length: 4 }, (_, id) => ({
            type: "token", id, stats: null, candidates: [], experts: {
              found: 90, brought: 10, n_bytes: 5, layers: [{
                layer: 1, found: Array(90).fill(0), brought: Array(10).fill(1), held: [],
                n_bytes: 5, ms: 1,
              }],
            },
          }));
          for (const event of events) kept.record({}, event);
          return events.map(({ experts }) => [experts.layers.length, experts.found]);
        }"""
    )
    assert found == [[0, 90], [0, 90], [1, 90], [1, 90]]


@pytest.fixture(scope="module")
def look(browser: Browser, _sites: dict[Any, Site]) -> Iterator[LookPanel]:
    """The instrument over a run of 20 tokens; tests leave another layer and expert behind."""
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
    key = (("n_experts", N),)
    here = _sites.setdefault(key, _sites.get(key) or fake_site(n_experts=N))
    _, look = wrote(page, here, 20)
    yield look.open("experts")
    page.close()


@pytest.mark.quick
def test_the_file_has_what_every_expert_was_given(look: LookPanel) -> None:
    rows = n_prompt(look.page) + 19
    expect(look.source).to_contain_text(
        f"Measured on this run, over {rows} tokens (prompt and answer)"
    )
    expect(look.source).not_to_contain_text("Unknown")
    told = json.loads(look.save("JSON"))
    times, gates = counted(range(rows))
    own = {route.layer: route for route in routes(rows - 1, LAYERS, N)}
    found = [dict(zip(told["columns"], row, strict=True)) for row in told["rows"]]
    layers = [row for row in found if row["expert"] is None]
    assert [row["layer"] for row in layers] == list(range(LAYERS - 1, 0, -1))
    for row in layers:
        used = times[row["layer"]]
        assert row["chosen"] == used.sum() == 2 * rows
        assert row["evenness"] == pytest.approx(evenness(used))
        assert row["unused"] == np.sum(used == 0)
        assert row["busiest"] == used.argmax()
        assert row["busiest × mean"] == pytest.approx(used.max() / used.mean())
    experts = [row for row in found if row["expert"] is not None]
    assert len(experts) == N * (LAYERS - 1)
    for row in experts:
        layer, expert = row["layer"], row["expert"]
        n = times[layer, expert]
        assert row["chosen"] == n
        assert row["share of choices"] == pytest.approx(n / (2 * rows))
        assert row["× mean"] == pytest.approx(n / times[layer].mean())
        assert row["mean gate"] == (pytest.approx(gates[layer, expert] / n) if n else None)
        at = dict(zip(own[layer].experts, own[layer].gates, strict=True))
        assert row["gate at the token"] == (pytest.approx(at[expert]) if expert in at else None)


@pytest.mark.quick
def test_what_is_said_beside_the_map(look: LookPanel) -> None:
    """The text is about the layer selected in the core, and about all layers."""
    page = look.page
    times, _ = counted(range(n_prompt(page) + 19))
    page.locator("#plot").focus()
    layer = 5
    page.locator(f'#lrows tr[data-layer="{layer}"]').click()
    expect(page.locator(".ex-head")).to_have_text(
        f"Layer {layer}: 2 of {N} experts per token, over {times[layer].sum() // 2} tokens."
    )
    even = [evenness(row) for row in times[1:]]
    load = times[1:].max(axis=1) / times[1:].mean(axis=1)
    least, most = int(np.argmin(even)), int(np.argmax(load))
    own = times[layer]
    assert page.locator(".ex-figures tbody tr").all_inner_texts() == [
        f"evenness\t{even[layer - 1]:.2f}\t"
        f"{np.mean(even):.2f} {even[least]:.2f} in layer {least + 1}",
        f"unused\t{np.sum(own == 0)} of {N}\t{np.sum(times[1:] == 0)} of {N * (LAYERS - 1)}",
        f"busiest\t{load[layer - 1]:.1f} × expert {own.argmax()}\t"
        f"{load[most]:.1f} × in layer {most + 1}",
    ]


# ---- the picture -----------------------------------------------------------------------------

# [colour in the middle of the cell, colour of what is drawn there] of every expert of a layer.
COLOURS = """async ([layer, mode]) => {
  const of = (name) => import(`/static/js/${name}.js`);
  const { layOut } = await of("look/experts/grid");
  const { BESIDE } = await of("look/experts/map");
  const { gatesOf } = await of("look/experts/figures");
  const { loadIntensity, intensity } = await of("look/shared/share-colours");
  const { shade } = await of("ui/palette");
  const { view } = await of("view");
  const { loadBalance, relativeLoad } = await of("turns/expert-use");
  const canvas = document.querySelector(".ex-map canvas");
  const left = parseFloat(getComputedStyle(canvas).getPropertyValue("--names"));
  const [wide, high] = [canvas.clientWidth, canvas.clientHeight];
  const places = layOut(wide, high, left, { n: 6, nLayers: 8 }, BESIDE);
  const ratio = canvas.width / canvas.clientWidth;
  const { given } = view.answer.use.of(layer, 6);
  const gates = gatesOf(view.answer.tokens.at(-1).stats, layer);
  return given.map((times, expert) => {
    const x = places.x(expert) + 0.2 * places.wide(expert);
    const y = places.y(layer) + 0.3 * places.high;
    const { data } = canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1);
    const load = loadIntensity(relativeLoad(times, loadBalance(given).choices, 6));
    const value = mode === "run" ? load : intensity(gates.get(expert) ?? 0);
    return [`rgb(${[...data].slice(0, 3)})`, shade(value)];
  });
}"""


def test_colours_are_loads_or_gates(look: LookPanel) -> None:
    page = look.page
    for mode, name in (("token", "This token"), ("run", "This run")):
        page.locator(".ex-bar label", has_text=name).click()
        expect(page.get_by_role("radio", name=name)).to_be_checked()
        expect(page.locator(".ex-bar .shares:visible")).to_contain_text(
            "× mean" if mode == "run" else "100 %"
        )
        for layer in (1, 4, 7):
            colours = page.evaluate(COLOURS, [layer, mode])
            assert all(drawn == wanted for drawn, wanted in colours), (mode, layer, colours)
            assert len({drawn for drawn, _ in colours}) > 2, "experts differ"


def test_the_load_of_an_even_share_is_the_middle_of_the_scale(call: Callable[..., Any]) -> None:
    strengths = [
        call("look/shared/share-colours", "loadIntensity", load) for load in (0, 0.25, 1, 4)
    ]
    assert strengths == pytest.approx([0, 0.2, 0.5, 0.8])


def test_no_expert_is_lost_at_any_size(look: LookPanel) -> None:
    sizes = [[4, 8, 300, 250], [8, 32, 650, 180], [128, 48, 650, 176], [128, 48, 344, 240],
             [512, 61, 320, 200], [1, 1, 700, 400]]  # fmt: skip
    found = look.page.evaluate(
        """async (sizes) => {
          const { layOut } = await import("/static/js/look/experts/grid.js");
          const { BESIDE } = await import("/static/js/look/experts/map.js");
          return sizes.map(([n, nLayers, width, height]) => {
            const places = layOut(width, height, 52, { n, nLayers }, BESIDE);
            const x = Array.from({ length: n }, (_, expert) => places.x(expert));
            const end = x.map((left, expert) => left + places.wide(expert));
            const { right, row, high, beside, foot } = places;
            return { n, nLayers, width, height, x, end, right, row, high, beside, foot };
          });
        }""",
        sizes,
    )
    for at in found:
        assert all(end > x for x, end in zip(at["x"], at["end"], strict=True))
        assert all(end <= x for end, x in zip(at["end"], at["x"][1:], strict=False))
        assert 0 < at["high"] <= at["row"]
        assert at["foot"] + 18 <= at["height"] or at["row"] == 3
        edge = max([at["right"], *(one["x"] + 48 for one in at["beside"])])
        assert edge <= at["width"] or at["n"] == 512
        assert len(at["beside"]) == (3 if at["width"] >= 480 else 0)


# ---- looking ---------------------------------------------------------------------------------


def told(layer: int, expert: int, rows: int) -> str:
    times, gates = counted(range(rows))
    n = times[layer, expert]
    return (
        f"chosen by {n} of {rows} tokens: {100 * n / (2 * rows):.1f} % of its layer’s choices, "
        f"{n / times[layer].mean():.2f} × mean; mean gate {gates[layer, expert] / n:.2f}"
    )


def test_experts_by_keyboard(look: LookPanel) -> None:
    page = look.page
    rows = n_prompt(page) + 19
    page.locator('#lrows tr[data-layer="6"]').click()
    field(page).focus()
    page.keyboard.press("Home")
    expect(field(page)).to_have_attribute("aria-valuenow", str(6 * N))
    expect(field(page)).to_have_attribute("aria-valuemax", str(N * LAYERS - 1))
    page.keyboard.press("ArrowLeft")
    expect(field(page)).to_have_attribute("aria-valuenow", str(6 * N))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(says(page).locator("b")).to_have_text("layer 5, expert 1")
    expect(says(page)).to_contain_text(told(5, 1, rows))
    expect(field(page)).to_have_attribute(
        "aria-valuetext", re.compile("layer 5, expert 1: chosen by")
    )
    expect(page.locator('#lrows tr[data-layer="5"]')).to_have_class(re.compile("hot"))
    page.keyboard.press("End")
    for _ in range(6):
        page.keyboard.press("ArrowDown")
    expect(says(page).locator("b")).to_have_text(f"layer 1, expert {N - 1}")
    page.keyboard.press("ArrowUp")
    expect(says(page).locator("b")).to_have_text(f"layer 2, expert {N - 1}")
    route = next(route for route in routes(rows - 1, LAYERS, N) if route.layer == 2)
    gates = dict(zip(route.experts, route.gates, strict=True))
    expect(says(page).locator("small")).to_have_text(
        re.compile(f"gate {gates[N - 1]:.3f}$" if N - 1 in gates else "did not choose it$")
    )
    page.locator("#plot").focus()
    page.keyboard.press("ArrowUp")
    expect(page.locator(".ex-head")).to_contain_text("Layer 3: ")


PRESS = """(field, keys) => {
  for (const key of keys) field.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
}"""


def test_keys_that_come_faster_than_frames_all_count(look: LookPanel) -> None:
    look.page.locator('#lrows tr[data-layer="6"]').click()
    field(look.page).focus()
    field(look.page).evaluate(PRESS, ["Home", *["ArrowDown"] * 4, *["ArrowRight"] * 3, "ArrowUp"])
    expect(says(look.page).locator("b")).to_have_text("layer 3, expert 3")


def test_experts_by_pointer(look: LookPanel) -> None:
    page = look.page
    rows = n_prompt(page) + 19
    page.locator('#lrows tr[data-layer="6"]').click()
    places = page.evaluate(
        """async () => {
          const { layOut } = await import("/static/js/look/experts/grid.js");
          const { BESIDE } = await import("/static/js/look/experts/map.js");
          const canvas = document.querySelector(".ex-map canvas");
          const left = parseFloat(getComputedStyle(canvas).getPropertyValue("--names"));
          const [wide, high] = [canvas.clientWidth, canvas.clientHeight];
          const at = layOut(wide, high, left, { n: 6, nLayers: 8 }, BESIDE);
          const { x, y } = canvas.getBoundingClientRect();
          return [[3, 2], [0, 1]].map(([layer, expert]) =>
            [x + at.x(expert) + 3, y + at.y(layer) + 3]);
        }"""
    )
    page.mouse.move(*places[0])
    expect(says(page).locator("b")).to_have_text("layer 3, expert 2")
    expect(says(page)).to_contain_text(told(3, 2, rows))
    page.mouse.move(*places[1])
    expect(says(page)).to_contain_text("does not exist: this layer is dense.")
    page.mouse.move(5, 5)
    expect(says(page).locator("b")).to_contain_text("layer 6, ")
    page.mouse.click(*places[0])
    page.mouse.move(5, 5)
    expect(says(page).locator("b")).to_have_text("layer 3, expert 2")
    expect(page.locator('#lrows tr[data-layer="3"]')).to_have_class(re.compile("hot"))


# ---- of which run ----------------------------------------------------------------------------


def test_a_model_without_experts_says_nothing_of_them(
    page: Page, site: Callable[..., Site]
) -> None:
    _, look = wrote(page, site(), 3)
    expect(page.locator("#experts-line")).to_be_hidden()
    page.goto(f"{page.url}#look=experts")
    page.reload()
    Playground(page).wait_ready()
    expect(look.panel).to_be_hidden()
    expect(look.tab("Experts")).to_have_count(0)
    look.tab("Lens").focus()
    page.keyboard.press("ArrowRight")
    expect(look.tab("Filters")).to_be_focused()


def test_a_replay_shows_them_as_they_were_and_a_new_run_begins_anew(
    page: Page, site: Callable[..., Site], tmp_path: Path
) -> None:
    play, look = wrote(page, site(n_experts=N), 12)
    film = play.playback
    file = film.save(tmp_path / "run.json")
    look.open("experts")
    rows = n_prompt(page) + 11
    before = look.save("JSON")
    expect(look.source).to_contain_text(f"over {rows} tokens")
    film.open(file)
    assert json.loads(look.save("JSON"))["rows"] == json.loads(before)["rows"]
    film.seek(3)
    expect(look.source).to_contain_text(f"over {rows - 9} tokens")
    film.seek(12)
    expect(look.source).to_contain_text(f"over {rows} tokens")
    film.leave.click()
    page.keyboard.press("Escape")
    page.get_by_role("switch", name="Capture").set_checked(False)
    play.set(max_tokens=3)
    play.ask("And then?")
    play.wait_done()
    look.open("experts")
    expect(look.message).to_contain_text("The experts of this run’s tokens are unknown")
    expect(look.message).to_contain_text("Switch on Capture")


def test_what_is_summarised_stays_counted(page: Page, site: Callable[..., Site]) -> None:
    n = 200
    small(page, site(n_experts=N), 120_000, n)
    look = Playground(page).look.open("experts")
    expect(look.source).to_contain_text(f"over {n_prompt(page) + n - 1} tokens")
    expect(look.source).to_contain_text("Old tokens are summarised without experts")
    page.locator("#plot").focus()
    page.keyboard.press("Home")
    expect(says(page)).to_contain_text("experts of tokens this old are not kept")
