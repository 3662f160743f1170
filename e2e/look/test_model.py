"""The instruments of what runs: the weights as their files say, the plan as the engine lists it."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from app import tale
from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page, violations
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from gpu import Engine, Inventory, TensorSummary
from gpu.inspection.requests import Profile, StepPlan, WeightsDigest
from tests.app import fake_inspection
from tests.app.fake_options import FakeOptions, info_of
from tests.serving import serving

FOLDER = tale.model_dir()
INVENTORY = Inventory.from_folder(FOLDER, "f16")
INFO = info_of(FakeOptions())
DOWN = "model.layers.2.mlp.down_proj.weight"

AREAS = """(map) => [...map.querySelectorAll("button")].map((cell) => {
  const { width, height } = cell.getBoundingClientRect();
  return [cell.dataset.name, width, height];
})"""
DRAWN = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.reduce((n, value, i) => n + (i % 4 === 3 && value > 0), 0);
}"""


@pytest.fixture
def look(page: Page, site: Callable[..., Site]) -> LookPanel:
    open_page(page, site())
    return Playground(page).look


def figures(look: LookPanel, name: str) -> dict[str, str]:
    """A list of figures: what they are called, and what they say."""
    texts = look.panel.locator(f"{name} > div").all_inner_texts()
    return dict(text.split("\n") for text in texts)


# ---- the weights -----------------------------------------------------------------------------


@pytest.mark.quick
def test_a_run_leaves_the_digest_of_the_weights(
    page: Page, bundled: Site, bundled_engine: Engine
) -> None:
    play = Playground(page, bundled).open()
    play.set(max_tokens=5)
    look = play.look.open("weights")
    box = look.panel.locator(".wt-digest")
    expect(box).to_contain_text("Inference changes no weight")
    box.get_by_role("button").click()
    expect(box.locator("code")).to_have_count(1)
    page.keyboard.press("Escape")
    play.ask()
    play.wait_tokens(5)
    play.wait_done()
    look.open("weights")
    box.get_by_role("button").click()
    expect(box.locator("code")).to_have_count(2)
    expect(box.get_by_role("status")).to_contain_text("the same each time")
    info = bundled_engine.inspect(WeightsDigest()).result().info
    assert box.locator("code").all_inner_texts() == [info["sha256"]] * 2
    expect(box.get_by_role("status")).to_contain_text(f"SHA-256 of {info['n_tensors']} tensors")
    assert violations(page) == []


def test_a_closed_panel_reads_no_weights(page: Page, site: Callable[..., Site]) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    open_page(page, site())
    page.wait_for_timeout(200)
    assert not [url for url in asked if "/api/" in url]
    look = Playground(page).look.open("weights")
    expect(look.panel.locator(".wt-cell").first).to_be_visible()
    page.keyboard.press("Escape")
    look.open("weights")
    assert len([url for url in asked if "/api/" in url]) == 1, "asked once, then known"


def test_the_inventory_of_weights_that_are_stored_otherwise_is_asked_for(
    page: Page, site: Callable[..., Site]
) -> None:
    """Also if not *Weights* asked before, but *Words*, which finds tensors by name."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    play = open_page(page, site())
    page.locator("#words-open").click()
    page.locator("#words-search").fill("mlp.up_proj")
    expect(page.locator("#words-list li", has_text="A tensor of").first).to_be_visible()
    page.keyboard.press("Escape")
    play.load_as(dtype="q8")
    play.look.open("weights")
    expect(page.locator(".wt-cell").first).to_be_visible()
    assert len([url for url in asked if "/api/weights" in url]) == 2


def test_areas_are_parameters(look: LookPanel) -> None:
    look.open("weights")
    map = look.panel.locator(".wt-map")
    expect(map.locator("button")).to_have_count(len(INVENTORY.tensors))
    area = {name: width * height for name, width, height in map.evaluate(AREAS)}
    tensors = {tensor.name: tensor for tensor in INVENTORY.tensors}
    scale = area[DOWN] / tensors[DOWN].parameters
    large = [tensor for tensor in INVENTORY.tensors if tensor.share > 0.01]
    assert len(large) == 1 + 5 * 8
    for tensor in large:
        assert area[tensor.name] == pytest.approx(scale * tensor.parameters, rel=0.12), tensor.name
    assert min(area.values()) > 0


@pytest.mark.quick
def test_the_table_is_the_inventory(look: LookPanel) -> None:
    look.open("weights")
    expect(look.panel.locator(".wt-cell").first).to_be_visible()
    rows = look.csv()
    assert [row["tensor"] for row in rows] == [tensor.name for tensor in INVENTORY.tensors]
    for row, tensor in zip(rows, INVENTORY.tensors, strict=True):
        assert int(row["parameters"]) == tensor.parameters
        assert float(row["share"]) == pytest.approx(tensor.share)
        assert int(row["bytes in the file"]) == tensor.n_bytes
        assert int(row["bytes on the device"]) == tensor.device_bytes
        assert int(row["bytes read per token"]) == tensor.token_bytes
        assert row["on the device as"] == (tensor.device_dtype or "")
        assert row["read by"] == ", ".join(tensor.read_by)
        assert row["tied to"] == (tensor.tied_to or "")
        assert row["in articles"] == tensor.article != ""
        assert row["shape"] == " × ".join(map(str, tensor.shape))
    sums = look.panel.locator(".wt-kinds .wt-what")
    look.panel.get_by_role("button", name="Table").click(force=True)
    expect(sums).to_contain_text("3,443,904 parameters, 6.9 MB in the files")


@pytest.mark.quick
def test_a_tensor_is_chosen_and_its_values_are_those_of_the_file(look: LookPanel) -> None:
    look.open("weights")
    look.panel.get_by_role("button", name=re.compile(f"^W_down, {re.escape(DOWN)}:")).click()
    summary = TensorSummary.from_folder(FOLDER, DOWN)
    values = look.panel.locator(".wt-values")
    expect(values.get_by_role("heading")).to_have_text(DOWN)
    expect(values.locator("dl")).to_be_visible()
    assert look.panel.get_by_role("radio", name="One tensor").is_checked()
    said = figures(look, ".wt-figures")

    def close(text: str, value: float | None) -> None:
        assert float(text.replace("−", "-").replace(",", "")) == pytest.approx(value, rel=1e-3)

    close(said["mean"], summary.mean)
    close(said["std"], summary.std)
    close(said["min"], summary.min)
    close(said["max"], summary.max)
    close(said["kurtosis"], summary.kurtosis)
    assert (said["values"], said["not finite"]) == ("73,728", "none")
    first = values.locator(".wt-largest tbody tr").first.locator("th, td").all_inner_texts()
    assert first[0] == str(list(summary.outliers[0].index))
    close(first[1], summary.outliers[0].value)
    assert values.locator("canvas").evaluate(DRAWN) > 2000
    bins = look.csv()
    assert [int(row["values"]) for row in bins] == list(summary.counts)
    assert float(bins[0]["from"]) == -summary.max_abs
    assert float(bins[-1]["to"]) == pytest.approx(summary.max_abs)


def test_tied_matrices_are_shown_tied(look: LookPanel) -> None:
    look.open("weights")
    head = look.panel.locator(".wt-cell.tied")
    expect(head).to_have_count(1)
    expect(head).to_have_text("W_unembed = W_E")
    head.click()
    what = look.panel.locator(".wt-values .wt-what")
    expect(what).to_contain_text("Tied to model.embed_tokens.weight, stored once")
    table = TensorSummary.from_folder(FOLDER, "model.embed_tokens.weight")
    expect(look.panel.locator(".wt-figures")).to_contain_text(f"{table.n:,}")
    assert [int(row["values"]) for row in look.csv()] == list(table.counts)


def test_rotary_positions_are_those_of_the_config(look: LookPanel) -> None:
    look.open("weights")
    look.panel.get_by_role("radio", name="Rotary positions").check(force=True)
    rope = INVENTORY.rope
    what = look.panel.locator(".wt-rotary .wt-what")
    expect(what).to_contain_text("16 pairs of dimensions in each head, base 10,000")
    open_pairs = sum(tokens > rope.context for tokens in rope.wavelength)
    expect(what).to_contain_text(f"{open_pairs} pairs turn less than once in the context of 1,024")
    assert look.panel.locator(".wt-turns").evaluate(DRAWN) > 1000
    rows = look.csv()
    assert [float(row["tokens per turn"]) for row in rows] == pytest.approx(rope.wavelength)
    assert [float(row["radians per token"]) for row in rows] == pytest.approx(rope.inv_freq)
    assert {float(row["scaled by"]) for row in rows} == {1.0}


def test_the_keyboard_walks_the_map_and_chooses(look: LookPanel) -> None:
    look.open("weights")
    page, map = look.page, look.panel.locator(".wt-map")
    expect(map.locator("button[tabindex='0']")).to_have_count(1)
    map.locator("button").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    focused = map.locator("button:focus")
    expect(focused).to_have_attribute("data-name", "model.layers.1.self_attn.q_proj.weight")
    expect(look.panel.locator(".wt-readout")).to_contain_text("192 × 192  36,864 parameters")
    page.keyboard.press("Enter")
    expect(focused).to_have_attribute("aria-pressed", "true")
    name = look.panel.locator(".wt-values").get_by_role("heading")
    expect(name).to_have_text("model.layers.1.self_attn.q_proj.weight")
    page.keyboard.press("End")
    expect(focused).to_have_attribute("data-name", "lm_head.weight")
    page.keyboard.press("Home")
    expect(focused).to_have_attribute("data-name", "model.embed_tokens.weight")


def test_the_layer_that_the_core_looks_at_is_marked(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site())
    play.set(max_tokens=5)
    play.ask()
    play.wait_tokens(5)
    play.wait_done()
    look = play.look.open("weights")
    marked = look.panel.locator(".wt-column.at .wt-name")
    expect(marked).to_have_count(1)
    before = marked.inner_text()
    play.core.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(marked).not_to_have_text(before)


def test_the_numbers_of_many_layers_keep_apart(page: Page, site: Callable[..., Site]) -> None:
    """Of as many as SmolLM2 has, made of the first one of the bundled model, on a phone."""

    def with_layers(route: Route) -> None:
        inventory = route.fetch().json()
        first = [tensor for tensor in inventory["tensors"] if tensor["layer"] == 0]
        others = [tensor for tensor in inventory["tensors"] if tensor["layer"] is None]
        layers = [
            {**tensor, "name": f"{layer}.{tensor['name']}", "layer": layer}
            for layer in range(36)
            for tensor in first
        ]
        tensors = others[:1] + layers + others[1:]
        whole = sum(tensor["share"] for tensor in tensors)
        tensors = [{**tensor, "share": tensor["share"] / whole} for tensor in tensors]
        route.fulfill(json={**inventory, "tensors": tensors})

    page.set_viewport_size({"width": 360, "height": 740})
    play = open_page(page, site())
    page.route("**/api/weights?*", with_layers)
    look = play.look.open("weights")
    expect(look.panel.locator(".wt-column[data-layer='35']")).to_be_visible()
    spans = look.panel.locator("[data-layer] > .wt-name").evaluate_all("""(names) => names
      .filter((name) => name.checkVisibility({ visibilityProperty: true }) && name.textContent)
      .map((name) => {
        const range = document.createRange();
        range.selectNodeContents(name);
        const { left, right } = range.getBoundingClientRect();
        return [left, right];
      })""")
    assert len(spans) > 5
    for (_, end), (begin, _) in pairwise(spans):
        assert begin - end >= 1


def test_a_tensor_that_cannot_be_read_is_said(look: LookPanel, allowed_console: list[str]) -> None:
    allowed_console.append("Failed to load resource")
    error = {"error": {"message": "tensor 'x' has dtype I64", "code": "invalid_request"}}
    look.page.route("**/api/weights/*", lambda route: route.fulfill(status=400, json=error))
    look.open("weights")
    look.panel.locator(".wt-cell").first.click()
    expect(look.message).to_have_text("This could not be shown: tensor 'x' has dtype I64")


# ---- the plan --------------------------------------------------------------------------------


READS = {
    "embed": "W_E",
    "attn.qkv": "norm1, W_Q, W_K, W_V",
    "attn.out": "W_O",
    "mlp.gate_up": "norm2, W_gate, W_up",
    "mlp.down": "W_down",
    "head": "final norm, W_unembed",
}
"""Names in articles of what a dispatch of the bundled model reads."""


def listed(n_rows: int, context: int) -> dict[str, Any]:
    return fake_inspection.answer(StepPlan(n_rows, context), INFO).info


@pytest.mark.quick
def test_the_dispatches_are_those_that_the_engine_lists(look: LookPanel) -> None:
    look.open("plan")
    cells = look.panel.locator(".pl-cell button")
    plan = listed(1, 0)
    expect(cells).to_have_count(len(plan["dispatches"]))
    labels = cells.evaluate_all("(cells) => cells.map((cell) => cell.getAttribute('aria-label'))")
    for i, (label, wanted) in enumerate(zip(labels, plan["dispatches"], strict=True)):
        assert label.startswith(f"{i + 1} of {len(labels)}: {wanted['label']}, "), label
    rows = look.panel.locator(".pl-row").evaluate_all(
        "(rows) => rows.map((row) => [row.firstChild.textContent, row.childElementCount - 1])"
    )
    layers = [[f"layer {i}", 5] for i in range(INFO.model.n_layers)]
    assert rows == [["before", 1], *layers, ["after", 3]]
    for row, wanted in zip(look.csv(), plan["dispatches"], strict=True):
        assert row["label"] == wanted["label"]
        assert row["reads"] == READS.get(re.sub(r"^layer\d+\.", "", row["label"]), "")
        assert row["layer"] == ("" if wanted["layer"] is None else str(wanted["layer"]))
        assert (int(row["bytes"]), int(row["operations"])) == (wanted["n_bytes"], wanted["flops"])
        assert row["GPU time, µs"] == ""


def test_a_dispatch_shows_its_buffers_and_its_source(look: LookPanel) -> None:
    look.open("plan")
    plan = listed(1, 0)
    wanted = plan["dispatches"][7]
    look.panel.locator(".pl-cell button").nth(7).click()
    detail = look.panel.locator(".pl-detail")
    expect(detail.get_by_role("heading")).to_have_text(wanted["label"])
    kernel = plan["kernels"][wanted["kernel"]]
    expect(detail.locator("pre")).to_have_text(kernel["source"])
    expect(detail.locator("p").first).to_have_text(
        f"{kernel['op']}.wgsl, kernel {wanted['kernel'] + 1} of {len(plan['kernels'])}"
    )
    said = figures(look, ".pl-figures")
    assert said["workgroups"] == "8 × 1 × 1 of 64"
    assert said["invocations"] == "512"
    assert "GPU time" not in said
    rows = detail.get_by_role("row").all_inner_texts()[1:]
    assert [row.split("\t")[0] for row in rows] == [b["name"] for b in wanted["bindings"]]
    assert rows[1].split("\t")[1:3] == ["t6", "f32 8"]
    assert rows[3].endswith("written")


def test_what_a_dispatch_reads_and_who_reads_it_are_marked(look: LookPanel) -> None:
    look.open("plan")
    cells = look.panel.locator(".pl-cell button")
    cells.nth(9).click()
    expect(cells.nth(9)).to_have_attribute("aria-pressed", "true")
    marked = "(cells, name) => cells.flatMap((c, i) => (c.classList.contains(name) ? [i] : []))"
    assert cells.evaluate_all(marked, "from") == [8]
    assert cells.evaluate_all(marked, "to") == [10]


def test_times_are_measured_when_asked_for(page: Page, site: Callable[..., Site]) -> None:
    messages = MessageLog(page)
    open_page(page, site())
    look = Playground(page).look.open("plan")
    expect(look.panel.locator(".pl-cell button").first).to_be_visible()
    kinds = [m["question"]["kind"] for m in messages.sent if m["type"] == "inspect"]
    assert kinds == ["plan"]
    look.panel.get_by_role("button", name="Measure GPU times").click()
    expect(look.source).to_contain_text("Times: medians of 7 runs on this device")
    asked = [m["question"] for m in messages.sent if m["type"] == "inspect"][-1]
    assert asked == {"kind": "profile", "n_rows": 1, "context": 0, "repeat": 7}
    times = fake_inspection.answer(Profile(1, 0, 7), INFO)["ms"]
    rows = look.csv()
    assert [float(row["GPU time, µs"]) for row in rows] == pytest.approx(list(1000 * times))
    shares = [float(row["share of the time"]) for row in rows]
    assert shares == pytest.approx(list(times / times.sum()), rel=1e-4)
    longest = look.panel.locator(".pl-cell button").nth(int(times.argmax())).locator(".time")
    width = longest.evaluate("(bar) => getComputedStyle(bar).backgroundSize")
    assert width.startswith("100%")


def test_another_step_is_another_plan_and_forgets_the_times(look: LookPanel) -> None:
    look.open("plan")
    look.panel.get_by_role("button", name="Measure GPU times").click()
    expect(look.source).to_contain_text("Times:")
    look.panel.get_by_role("radio", name="Prefill").check(force=True)
    expect(look.source).to_contain_text("recorded for 64 rows")
    expect(look.source).not_to_contain_text("Times:")
    field = look.panel.get_by_label("after")
    field.fill("100")
    field.press("Enter")
    wanted = listed(64, 100)
    until(
        look.page,
        lambda: int(look.csv()[0]["bytes"]) == wanted["dispatches"][0]["n_bytes"],
        "the plan of the longer context",
    )
    field.fill("999999")
    field.press("Tab")
    expect(field).to_have_value(str(INFO.limits.context - 64))


def test_the_plan_starts_where_the_run_is_looked_at(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site())
    messages = play.messages
    play.set(max_tokens=12)
    play.ask()
    play.wait_tokens(12)
    play.wait_done()
    look = play.look.open("plan")
    n_prompt = len(messages.events("accepted")[-1]["prompt"])
    expect(look.panel.get_by_label("after")).to_have_value(str(n_prompt + 11))


def test_a_run_that_writes_beside_it_asks_for_no_more_plans(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.005))
    messages = play.messages
    play.set(max_tokens=60)
    play.ask()
    play.wait_tokens(3)
    play.look.open("plan")
    play.wait_tokens(60)
    play.wait_done()
    assert len([m for m in messages.sent if m["type"] == "inspect"]) == 1


def test_the_keyboard_walks_the_graph(look: LookPanel) -> None:
    look.open("plan")
    cells = look.panel.locator(".pl-cell button")
    cells.first.focus()
    look.page.keyboard.press("ArrowDown")
    look.page.keyboard.press("ArrowRight")
    look.page.keyboard.press("ArrowDown")
    expect(cells.nth(7)).to_be_focused()
    look.page.keyboard.press("Enter")
    expect(cells.nth(7)).to_have_attribute("aria-pressed", "true")


def bound(label: str, layer: int | None, reads: str, writes: str) -> dict[str, Any]:
    """A dispatch that reads and writes tensors of one letter each."""
    access = [(name, "read") for name in reads] + [(name, "read_write") for name in writes]
    bindings = [{"tensor": name, "access": use} for name, use in access]
    return {"label": label, "layer": layer, "bindings": bindings}


ORDER = [
    bound("embed", None, "", "a"),
    bound("layer00.attn.attention", 0, "a", "p"),
    bound("layer00.attn.attention.merge", 0, "p", "b"),
    bound("layer00.mlp.down", 0, "ab", "c"),
    bound("layer00.mlp.down", 0, "ab", "c"),
    bound("layer01.attn.attention", 1, "c", "a"),
    bound("head", None, "ac", "l"),
]
ASK_ORDER = """async ([dispatches, numbers]) => {
  const { rowsOf, columnsOf, neighbours } = await import("/static/js/look/plan/order.js");
  const rows = rowsOf(dispatches);
  const lists = numbers.map((i) => neighbours(dispatches, i)).map(({ from, to }) => [
    [...from].sort(), [...to].sort(),
  ]);
  return { rows, columns: columnsOf(rows), lists };
}"""


def test_shards_and_splits_have_their_places_and_neighbours(look: LookPanel) -> None:
    told = look.page.evaluate(ASK_ORDER, [ORDER, [0, 2, 3, 5, 6]])
    assert [row["title"] for row in told["rows"]] == ["before", "layer 0", "layer 1", "after"]
    assert told["columns"] == ["attention", "attention.merge", "down"]
    assert [cell["numbers"] for cell in told["rows"][1]["cells"]] == [[1], [2], [3, 4]]
    assert told["lists"] == [
        [[], [1, 3, 4]],  # not the head, which reads what layer 1 wrote over it
        [[1], [3, 4]],
        [[0, 2], [5, 6]],
        [[3, 4], [6]],
        [[3, 4, 5], []],
    ]


# ---- both ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theme", "size"),
    [
        ("light", (360, 780)),
        pytest.param("dark", (1440, 900), marks=pytest.mark.slow),
        pytest.param("light", (1440, 900), marks=pytest.mark.slow),
        pytest.param("dark", (900, 800), marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_in_any_of_their_states(
    page: Page, site: Callable[..., Site], theme: str, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    open_page(page, site(), color_scheme=theme)
    look = Playground(page).look.open("weights")
    expect(look.panel.locator(".wt-cell").first).to_be_visible()
    assert violations(page) == [], "all tensors"
    look.panel.locator(".wt-cell").nth(2).click()
    expect(look.panel.locator(".wt-figures")).to_be_visible()
    assert violations(page) == [], "one tensor"
    look.panel.get_by_role("radio", name="Rotary positions").check(force=True)
    expect(look.panel.locator(".wt-turns")).to_be_visible()
    assert violations(page) == [], "rotary positions"
    look.open("plan")
    expect(look.panel.locator(".pl-cell button").first).to_be_visible()
    assert violations(page) == [], "plan"
    look.panel.get_by_role("button", name="Measure GPU times").click()
    expect(look.source).to_contain_text("Times:")
    assert violations(page) == [], "with times"


@pytest.mark.parametrize("width", [360, 768, 1024, 1440, 2560])
def test_nothing_is_wider_than_its_place(page: Page, site: Callable[..., Site], width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    play = open_page(page, site())
    look = play.look
    for name in ("weights", "plan"):
        look.open(name)
        expect(look.panel.locator(".wt-cell, .pl-cell").first).to_be_attached()
        assert play.overflow() <= 0, name
        wide = "(node) => node.scrollWidth - node.clientWidth"
        assert page.locator(f".instrument.{name}").evaluate(wide) <= 0, name


def test_a_real_engine_lists_and_times_its_plan(page: Page) -> None:
    with serving() as url:
        play = Playground(page, url=url).open()
        look = play.look.open("plan")
        expect(look.panel.locator(".pl-cell button").first).to_be_visible()
        rows = look.csv()
        expected_layer = ["attn.qkv", "attn.attention", "attn.out", "mlp.gate_up", "mlp.down"]
        layers = [f"layer{i:02}.{part}" for i in range(8) for part in expected_layer]
        assert [row["label"] for row in rows] == ["embed", *layers, "head", "sample.keys", "sample"]
        weights = sum(tensor.n_bytes for tensor in INVENTORY.tensors if len(tensor.shape) == 2)
        assert weights < sum(int(row["bytes"]) for row in rows) < 1.1 * weights
        look.panel.locator(".pl-cell button").nth(1).click()
        source = look.panel.locator(".pl-source")
        expect(source).to_contain_text("const N_HEADS: u32 = 6u;")
        expect(source).to_contain_text("@compute")
        look.panel.get_by_role("button", name="Measure GPU times").click()
        expect(look.source).to_contain_text("Times: medians of 7 runs", timeout=60_000)
        times = {row["label"]: float(row["GPU time, µs"]) for row in look.csv()}
        assert min(times.values()) >= 0
        assert times["head"] > times["layer00.attn.out"] > 0
