"""Adapters of mixtures of experts, their shared experts and routers, against PEFT's own models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gpu.footprint import Footprint
from gpu.pytorch.runner import TorchRunner
from gpu.reach import NOTHING, Reach
from gpu.runner import Runner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Floats, Row, Step
from gpu.webgpu.device import Device
from tests.gpu import driving, random_loras, random_models
from tests.gpu.logit_checks import check_logits
from tests.gpu.peft_models import OF_EXPERTS, applied, saved
from tests.gpu.random_loras import base, folder, fused, merged
from tests.gpu.rig import greedy

MODELS = ("mixtral_window_odd", "qwen2_moe")
"""33 outputs and 5 experts, of which a row takes 3, by Mixtral's names; a layer without experts
between two with 10 and a shared one."""
OTHERS = ("qwen3_moe", "olmoe")
STRENGTHS = {"modules": 1.0}, {"modules": -0.5, "parameters": 0.75}
CONVERTED_BY_PEFT = ("mixtral_window_odd", "olmoe")
N = 4
SHARED = MODELS[1]


def adapters(name: str) -> dict[str, Path]:
    """Of every module as transformers had them before 5, routers and each expert's matrices among
    them; and of the parameters of all experts of a layer."""
    return {"modules": folder(name, "all", 1), "parameters": fused(name, 2)}


def made_by_peft(name: str) -> dict[str, Path]:
    return {kind: saved(name, kind, seed) for seed, kind in enumerate(OF_EXPERTS)}


Load = Callable[..., WgpuRunner]


@pytest.fixture(scope="module")
def loaded(device: Device) -> Load:
    """Runners with the adapters of a case, each loaded once."""

    @cache
    def of(name: str, expert_slots: int | None = None) -> WgpuRunner:
        return driving.load(
            device, base(name), n_slots=3, loras=adapters(name), expert_slots=expert_slots
        )

    return of


def logits(runner: Runner, ids: list[int], strengths: Mapping[str, float]) -> Floats:
    """float32 (N, vocab_size), of one step"""
    driving.begin(runner, 0, ids, len(ids))
    runner.set_reach(0, Reach(loras=strengths))
    rows = tuple(Row(0, i, id) for i, id in enumerate(ids))
    return runner.logits(Step(rows, tuple(greedy(i) for i in range(len(ids))), loras=True))


def check(runner: Runner, name: str) -> None:
    """Each of what PEFT makes, alone and blended."""
    loras = made_by_peft(name)
    for kind in OF_EXPERTS:
        check_one(runner, name, {kind: 1.0}, applied(name, {loras[kind]: 1.0}))
    both = {"router": -0.5, "rooted": 0.75}
    check_one(runner, name, both, applied(name, {loras[kind]: by for kind, by in both.items()}))


def check_one(
    runner: Runner, name: str, strengths: Mapping[str, float], oracle: random_models.Reference
) -> None:
    ids = random_models.ids(N)
    plain, want = random_loras.reference(name).logits(ids), oracle.logits(ids)
    assert np.abs(want - plain).max() > 0.05 * np.abs(plain).max(), "it changes too little"
    check_logits("logits with adapters of experts", logits(runner, ids, strengths), want, name)


@pytest.mark.parity
@pytest.mark.parametrize(
    "name", [*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_logits_are_those_of_peft(device: Device, name: str) -> None:
    check(driving.load(device, base(name), n_slots=1, loras=made_by_peft(name)), name)


@pytest.mark.parametrize("name", MODELS)
def test_torch_computes_the_same(name: str) -> None:
    runner = TorchRunner.load(base(name), loras=made_by_peft(name))
    check(runner, name)
    runner.close()


@pytest.mark.parity
@pytest.mark.parametrize(
    "name", [*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_adapters_of_each_experts_matrices(loaded: Load, name: str) -> None:
    """As older transformers had them, beside those of all experts. PEFT converts most of them by
    itself; it has no blend of both, and no conversion for two of these architectures: there the
    oracle is the model that we merge them into (`random_loras.merged`)."""
    runner, loras = loaded(name), adapters(name)
    if name in CONVERTED_BY_PEFT:
        at = {loras["modules"]: 1.0}
        check_one(runner, name, {"modules": 1.0}, applied(name, at))
    check_one(runner, name, {"parameters": 1.0}, applied(name, {loras["parameters"]: 1.0}))
    for strengths in STRENGTHS:
        at = {loras[of]: by for of, by in strengths.items()}
        check_one(runner, name, strengths, merged(name, at))


def test_rows_of_a_step_have_adapters_of_their_own(loaded: Load) -> None:
    """To the bit what each gives alone, where no rows share experts and in the plan without
    adapters for the base."""
    runner = loaded(SHARED)
    settings = [Reach(loras=STRENGTHS[0]), Reach(loras=STRENGTHS[1]), NOTHING]
    alone, rows = [], []
    for slot, reach in enumerate(settings):
        rows.append(Row(slot, 0, 5 + slot))
        driving.begin(runner, slot, [rows[-1].token], 1, [slot])
        runner.set_reach(slot, reach)
        step = Step((rows[-1],), (greedy(0, slot),), loras=reach.acts)
        alone.append(runner.logits(step)[0])
    samples = tuple(greedy(i, i) for i in range(3))
    together = runner.logits(Step(tuple(rows), samples, loras=True))
    assert np.array_equal(together.view("u4"), np.stack(alone).view("u4"))


def test_adapters_act_on_experts_that_wait_in_the_host(loaded: Load) -> None:
    """A step that wants more experts than there are slots, and then one that finds some there."""
    whole, some = loaded(SHARED), loaded(SHARED, 3)
    ids = random_models.ids(N)
    for strengths in STRENGTHS:
        want = logits(whole, ids, strengths)
        assert np.array_equal(logits(some, ids, strengths).view("u4"), want.view("u4"))


def test_what_they_take_is_known_before(loaded: Load, device: Device) -> None:
    name = SHARED
    fused_alone = {"parameters": adapters(name)["parameters"]}
    alone = driving.load(device, base(name), n_slots=3, loras=fused_alone)
    for runner, loras in ((loaded(name), adapters(name)), (alone, fused_alone)):
        expect_known(runner, name, loras)
    ids, want = random_models.ids(N), merged(name, {fused_alone["parameters"]: 1.0})
    got = logits(alone, ids, {"parameters": 1.0})  # gate and up have one A here
    check_logits("logits with adapters of experts", got, want.logits(ids), name)


def expect_known(runner: WgpuRunner, name: str, loras: Mapping[str, Path]) -> None:
    recorded = runner.plans.plan(1, 0, "plain", loras=True)
    adapted = recorded.instruments.adapted
    assert adapted is not None
    need = Footprint.of(base(name), "f32", loras=loras)
    low = [*adapted.of.values(), *adapted.of_experts.values()]
    tables = {id(tensor): tensor for of in low for tensor in (of.first, of.ends)}
    tables |= {id(of.slots): of.slots for of in adapted.of_experts.values()}
    shared = sum(tensor.n_bytes for tensor in tables.values())
    assert runner.memory.weights == need.weights + need.adapters + shared
