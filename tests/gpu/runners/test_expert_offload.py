"""Models with some experts in host memory give the same bits as with all on the device, for any
number of slots, and report their transfers."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu import Engine, Footprint, SamplingParams
from gpu.checkpoint.weights import WeightLoader
from gpu.checks.rig import Arrays, limited
from gpu.errors import ModelError
from gpu.events import Done, Event, Prefill, Token
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import ExpertUse, InspectionRequest, LayerExpertUse, Row, Sample, Step
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.models import random_models
from tests.gpu.on_device import stored_numbers
from tests.gpu.ops.rig import Rig

N_TOKENS = 21
CHUNK = 8
"""Rows of all steps but decoding ones, so that few kernels are compiled."""
DTYPES = {"qwen2_moe": "q8", "qwen3_moe_window_bias": "f32"}
"""A layer without experts between two that have 10 each, and a shared one, all wanted by a step of
some rows; 37 experts, of which a step wants few."""
DRAWN = Sample(0, 0, 7, 0, 1.3, 40, 0.95, 0.01, 1.1)


@pytest.fixture(scope="module")
def resident(device: Device) -> Any:
    """Return runners with all experts on the device, by case, and what they compute."""
    found: dict[str, tuple[WgpuRunner, dict[str, Any]]] = {}

    def of(name: str) -> tuple[WgpuRunner, dict[str, Any]]:
        if name not in found:
            runner = load(device, name, None)
            found[name] = runner, computed(runner)
        return found[name]

    return of


def load(device: Device, name: str, expert_slots: int | None) -> WgpuRunner:
    folder = random_models.folder(name)
    return driving.load(device, folder, DTYPES[name], n_slots=1, expert_slots=expert_slots)


def computed(runner: WgpuRunner) -> dict[str, Any]:
    """Return logits, statistics, captured tokens and an inspection."""
    ids = random_models.ids(N_TOKENS)
    captured = driving.captured(runner, ids, CHUNK)
    written = driving.generate(runner, ids[: CHUNK + 1], 6, sample=DRAWN, capture=True)
    driving.begin(runner, 0, ids, len(ids))
    driving.prefill(runner, ids[:-CHUNK], chunk=CHUNK)
    rows = tuple(Row(0, i, ids[i]) for i in range(N_TOKENS - CHUNK, N_TOKENS))
    looked = runner.inspect(Step(rows), InspectionRequest(routes=True)).routes
    assert looked is not None
    return {
        "logits": driving.all_logits(runner, ids),
        "mlp": np.concatenate([part.mlp for part in captured]),
        "residual": np.concatenate([part.residual for part in captured]),
        "written": written,
        "chosen": looked.chosen,
        "norms": looked.norms,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n_slots"),
    [
        ("qwen3_moe_window_bias", 1),
        pytest.param("qwen2_moe", 3, marks=pytest.mark.slow),
        pytest.param("qwen3_moe_window_bias", 9, marks=pytest.mark.slow),
    ],
)
def test_the_same_bits_at_any_number_of_slots(
    device: Device, resident: Any, name: str, n_slots: int
) -> None:
    whole, want = resident(name)
    runner = load(device, name, n_slots)
    assert runner.in_flight == 1
    assert runner.memory.weights < whole.memory.weights
    for one, slots in ((runner, n_slots), (whole, None)):
        need = Footprint.of(
            random_models.folder(name), LoadOptions(dtype=DTYPES[name], expert_slots=slots)
        )
        assert one.memory.weights == need.weights
    got = computed(runner)
    for what, values in want.items():
        if what == "written":
            assert got[what] == values
        else:
            assert np.array_equal(got[what].view("u4"), values.view("u4")), what


def test_steps_report_expert_hits_and_misses(device: Device) -> None:
    """A recomputed token finds its experts on the device; nothing is reported if all experts are
    there."""
    name = "qwen3_moe_window_bias"
    runner, ids = load(device, name, 12), random_models.ids(4)
    experts_per_token, layers = 5, 2
    driving.begin(runner, 0, ids, len(ids))
    uses = []
    for _ in range(2):
        runner.submit(Step((Row(0, 0, ids[0]),)))
        uses.append(runner.collect().experts)
    moe = next(iter(runner.model.moes.values()))  # type: ignore[attr-defined]
    expert_bytes = sum(stack.expert_bytes for stack in moe.stacks)
    wanted = experts_per_token * layers
    assert uses == [ExpertUse(0, wanted, wanted * expert_bytes), ExpertUse(wanted, 0, 0)]
    assert step_uses(runner, ids[:1], capture=False) == [ExpertUse(wanted, 0, 0)]
    whole = load(device, name, None)
    driving.begin(whole, 0, ids, len(ids))
    whole.submit(Step((Row(0, 0, ids[0]),)))
    assert whole.collect().experts is None


def step_uses(runner: WgpuRunner, ids: list[int], *, capture: bool = True) -> list[ExpertUse]:
    """Return the uses of a step for each of `ids`, at position 0."""
    uses = []
    for id in ids:
        runner.submit(Step((Row(0, 0, id),), capture=capture))
        use = runner.collect().experts
        assert use is not None
        uses.append(use)
    return uses


def chosen_experts(runner: WgpuRunner, id: int) -> npt.NDArray[np.uint32]:
    """Return the experts (layers, experts_per_token) of a token at position 0."""
    looked = runner.inspect(Step((Row(0, 0, id),)), InspectionRequest(routes=True)).routes
    assert looked is not None
    return looked.chosen[0]


@pytest.mark.parametrize("n_slots", [2, 6])
def test_a_captured_step_reports_each_layer(device: Device, n_slots: int) -> None:
    """Which experts it found, loaded and left on the device, the bytes and the time. With 2 slots a
    token's 5 experts need 3 rounds, so some of those loaded are gone at the end."""
    runner = load(device, "qwen3_moe_window_bias", n_slots)
    ids, per_token = random_models.ids(6), 5
    driving.begin(runner, 0, ids, len(ids))
    moes = runner.model.moes  # type: ignore[attr-defined]
    chosen = [chosen_experts(runner, id) for id in ids]
    (before,) = step_uses(runner, ids[:1])
    held = {of.layer: of.held for of in before.layers}
    for experts, use in zip(chosen[1:], step_uses(runner, ids[1:]), strict=True):
        assert [of.layer for of in use.layers] == list(moes)
        for i, of in enumerate(use.layers):
            assert {*of.found, *of.brought} == set(experts[i].tolist())
            assert len(of.found) + len(of.brought) == per_token
            assert of.found == tuple(e for e in of.found if e in held[of.layer])
            assert not set(of.brought) & set(held[of.layer])
            expert_bytes = sum(stack.expert_bytes for stack in moes[of.layer].stacks)
            assert of.n_bytes == len(of.brought) * expert_bytes
            assert (of.ms > 0) == bool(of.brought)
            assert len(of.held) == len(set(of.held)) == n_slots
            assert set(of.held) <= {*held[of.layer], *of.found, *of.brought}
        held = {of.layer: of.held for of in use.layers}
        totals = [(len(of.found), len(of.brought), of.n_bytes) for of in use.layers]
        assert (use.found, use.brought, use.n_bytes) == tuple(map(sum, zip(*totals, strict=True)))


def test_layers_of_a_stage_have_their_numbers_in_the_model() -> None:
    of = LayerExpertUse(1, (0,), (), (0,), 0, 0.0)
    whole = ExpertUse(1, 0, 0, (of,)).plus(ExpertUse(1, 0, 0, (of,)).from_layer(4))
    assert (whole.found, [each.layer for each in whole.layers]) == (2, [1, 5])


def test_as_many_slots_as_experts_are_all_of_them(device: Device) -> None:
    name, n_experts = "qwen2_moe", 10
    runner = load(device, name, n_experts)
    whole = load(device, name, None)
    assert runner.in_flight == whole.in_flight > 1
    assert runner.memory == whole.memory


@pytest.mark.slow
def test_an_engine_writes_the_same_and_reports_experts_with_every_token() -> None:
    """A prompt in one chunk, then tokens; PyTorch has all experts where they are computed."""
    name, written, told = "qwen2_moe", [], []
    for expert_slots in (None, 2):
        options = LoadOptions(dtype=DTYPES[name], context=64, slots=1, expert_slots=expert_slots)
        engine = Engine.load(random_models.folder(name), options)
        events: list[Event] = []
        params = SamplingParams(seed=3, max_tokens=6, ignore_eos=True)
        engine.submit(Request(random_models.ids(8), params), events.append)
        while not events or not isinstance(events[-1], Done):
            time.sleep(0.01)
        engine.close()
        steps = [event for event in events if isinstance(event, Prefill | Token)]
        written.append([event.id for event in steps if isinstance(event, Token)])
        told.append([event.experts for event in steps])
    assert written[0] == written[1]
    assert told[0] == [None] * len(told[0])
    uses = [used for used in told[1] if used is not None]
    assert len(uses) == len(told[1]) == len(told[0])
    prompt, first, *others = uses
    assert first == ExpertUse(), "it was counted with the prompt"
    assert all(used.found + used.brought >= 2 * 4 for used in (prompt, *others)), "4 in 2 layers"
    assert sum(used.n_bytes for used in uses) > 0
    with pytest.raises(ModelError, match="expert-slots is for --backend wgpu"):
        Engine.load(random_models.folder(name), LoadOptions(backend="torch", expert_slots=2))
    with pytest.raises(ModelError, match="should be 1 or more"):
        Engine.load(random_models.folder(name), LoadOptions(expert_slots=0))


@pytest.mark.parametrize("n", [5, 8])
@pytest.mark.parametrize("dtype", ["f32", "q8", "q4"])
def test_an_expert_is_copied_to_the_place_of_its_slot(rig: Rig, dtype: str, n: int) -> None:
    """Slots lie in several shards; the contents of the others stay."""
    n_experts, k = 6, 33
    rng = np.random.default_rng(0)
    arrays = {
        f"{part}{i}": rng.normal(size=(n, k)).astype(np.float32)
        for part in ("gate", "up")
        for i in range(n_experts)
    }
    sources = [(f"gate{i}", f"up{i}") for i in range(n_experts)]
    small = Memory(limited(rig.device, 2 * 2 * n * 64 * 4))
    loader = partial(WeightLoader, Arrays(arrays), small, dtype)
    whole = loader().experts("whole", sources, n, k)
    stack = loader(expert_slots=3).experts("stack", sources, n, k)
    assert whole.host is None
    assert stack.n_slots == 3
    assert dtype != "f32" or len(stack.matrix.shards) == 2
    lies = [5, 0, 3]
    for slot, expert in enumerate([1, 0, 4]):
        stack.upload(small, expert, slot)
    for slot, expert in ((0, 5), (2, 3)):
        stack.upload(small, expert, slot)
    want, got = stored_numbers(small, whole.matrix), stored_numbers(small, stack.matrix)
    if dtype == "f32":
        gates = [arrays[f"gate{i}"] for i in range(n_experts)]
        assert np.array_equal(want[::2], np.concatenate(gates))
    for slot, expert in enumerate(lies):
        rows = slice(expert * stack.n, (expert + 1) * stack.n)
        assert np.array_equal(got[slot * stack.n : (slot + 1) * stack.n], want[rows])
