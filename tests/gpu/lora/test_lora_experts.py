"""Adapters of mixtures of experts, shared experts and routers, against PEFT's own models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gpu.analysis.footprint import Footprint
from gpu.checks.rig import greedy
from gpu.interventions.active import NONE_ACTIVE, ActiveInterventions
from gpu.load_options import LoadOptions
from gpu.pytorch.runner import TorchRunner
from gpu.runner import Runner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Floats, Row, Step
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.lora import random_loras
from tests.gpu.lora.peft_models import OF_EXPERTS, applied, saved
from tests.gpu.lora.random_loras import base, folder, fused, merged
from tests.gpu.models import random_models
from tests.gpu.models.logit_checks import check_logits

MODELS = ("mixtral_window_odd", "qwen2_moe")
"""One with 33 outputs and 5 experts, of which a token uses 3, by Mixtral's names; one with a layer
without experts between two with 10 and a shared one."""
OTHERS = ("qwen3_moe", "olmoe")
STRENGTHS = {"modules": 1.0}, {"modules": -0.5, "parameters": 0.75}
CONVERTED_BY_PEFT = ("mixtral_window_odd", "olmoe")
N = 4
SHARED = MODELS[1]


def adapters(name: str) -> dict[str, Path]:
    """Return adapters of every module as in transformers before 5, including routers and each
    expert's matrices; and of the parameters of all experts of a layer."""
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
    """Return the logits of one pass, float32 (N, vocab_size)."""
    driving.begin(runner, 0, ids, len(ids))
    runner.set_interventions(0, ActiveInterventions(loras=strengths))
    rows = tuple(Row(0, i, id) for i, id in enumerate(ids))
    return runner.logits(Step(rows, tuple(greedy(i) for i in range(len(ids))), loras=True))


def check(runner: Runner, name: str) -> None:
    """Compare each adapter made by PEFT, alone and blended."""
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


@pytest.mark.ci
@pytest.mark.parity
@pytest.mark.parametrize(
    "name", [*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_logits_are_those_of_peft(device: Device, name: str) -> None:
    check(driving.load(device, base(name), n_slots=1, loras=made_by_peft(name)), name)


@pytest.mark.parametrize("name", MODELS)
def test_the_torch_backend_computes_the_same(name: str) -> None:
    runner = TorchRunner.load(base(name), LoadOptions(dtype="f32", loras=made_by_peft(name)))
    check(runner, name)
    runner.close()


@pytest.mark.parity
@pytest.mark.parametrize(
    "name", [*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_adapters_of_each_experts_matrices(loaded: Load, name: str) -> None:
    """The layout of older transformers, beside adapters of all experts.

    PEFT converts most of these adapters. It does not support blends of both, nor conversion for two
    of these architectures; there the reference is the merged model (`random_loras.merged`).
    """
    runner, loras = loaded(name), adapters(name)
    if name in CONVERTED_BY_PEFT:
        at = {loras["modules"]: 1.0}
        check_one(runner, name, {"modules": 1.0}, applied(name, at))
    check_one(runner, name, {"parameters": 1.0}, applied(name, {loras["parameters"]: 1.0}))
    for strengths in STRENGTHS:
        at = {loras[of]: by for of, by in strengths.items()}
        check_one(runner, name, strengths, merged(name, at))


@pytest.mark.ci
def test_rows_of_a_pass_have_their_own_adapters(loaded: Load) -> None:
    """To the bit what each gives alone, for rows that share no experts; the base in its plan
    without adapters."""
    runner = loaded(SHARED)
    settings = [
        ActiveInterventions(loras=STRENGTHS[0]),
        ActiveInterventions(loras=STRENGTHS[1]),
        NONE_ACTIVE,
    ]
    alone, rows = [], []
    for slot, active in enumerate(settings):
        rows.append(Row(slot, 0, 5 + slot))
        driving.begin(runner, slot, [rows[-1].token], 1, [slot])
        runner.set_interventions(slot, active)
        step = Step((rows[-1],), (greedy(0, slot),), loras=active.acts)
        alone.append(runner.logits(step)[0])
    samples = tuple(greedy(i, i) for i in range(3))
    together = runner.logits(Step(tuple(rows), samples, loras=True))
    assert np.array_equal(together.view("u4"), np.stack(alone).view("u4"))


def test_adapters_apply_to_experts_in_host_memory(loaded: Load) -> None:
    """One pass that uses more experts than there are expert slots, and one that finds some
    resident."""
    whole, some = loaded(SHARED), loaded(SHARED, 3)
    ids = random_models.ids(N)
    for strengths in STRENGTHS:
        want = logits(whole, ids, strengths)
        assert np.array_equal(logits(some, ids, strengths).view("u4"), want.view("u4"))


def test_the_memory_of_adapters_is_known_before_loading(loaded: Load, device: Device) -> None:
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
    adapted = recorded.instruments.lora
    assert adapted is not None
    need = Footprint.of(base(name), LoadOptions(dtype="f32", loras=loras))
    low = [*adapted.by_matrix.values(), *adapted.by_expert_matrix.values()]
    tables = {id(tensor): tensor for of in low for tensor in (of.first, of.ends)}
    tables |= {id(of.slots): of.slots for of in adapted.by_expert_matrix.values()}
    shared = sum(tensor.n_bytes for tensor in tables.values())
    assert runner.memory.weights == need.weights + need.adapters + shared
