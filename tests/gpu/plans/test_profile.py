"""GPU times of single dispatches are complete and assigned correctly, and profiling changes no
run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Row, Step
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.engine.driving import GREEDY, counted
from tests.gpu.models import random_llama

NAME = "vocab50000_tied"
"""Model whose output head takes far longer than any matmul of its layers."""


def without(device: Device, *features: str) -> Device:
    """The same device, said to lack these features."""
    kept = tuple(f for f in device.info.features if f not in features)
    return replace(device, info=replace(device.info, features=kept))


WAYS: dict[str, Callable[[Device], Device]] = {
    "as it is": lambda device: device,
    "a pass each": lambda device: without(device, "timestamp-query-inside-passes"),
}


@pytest.fixture(scope="module", params=WAYS)
def runner(request: pytest.FixtureRequest, device: Device) -> WgpuRunner:
    if not device.has_timestamps:
        pytest.skip(f"{device.info.name} has no clock")
    return driving.load(WAYS[request.param](device), random_llama.folder(NAME), "f16")


def begin(runner: WgpuRunner, slot: int, n_tokens: int, first_block: int = 0) -> list[int]:
    """A sequence whose first tokens are in the cache."""
    ids = random_llama.ids(NAME, n_tokens)
    blocks = range(first_block, first_block + -(-n_tokens // 16))
    driving.begin(runner, slot, ids, n_tokens, blocks)
    driving.prefill(runner, ids, slot=slot)
    return ids


def last_rows(ids: list[int], n: int, slot: int = 0) -> Step:
    first = len(ids) - n
    rows = tuple(Row(slot, first + i, id) for i, id in enumerate(ids[first:]))
    return Step(rows, (counted(GREEDY, n - 1, slot, 0),))


@pytest.mark.ci
@pytest.mark.parametrize("n_rows", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_dispatch_has_a_time(runner: WgpuRunner, n_rows: int) -> None:
    step = last_rows(begin(runner, 0, 30), n_rows)
    times = runner.profile(step, 3)
    plan = runner.plan_for(n_rows, 1, capture=False, context=30).plan
    assert times is not None
    assert times.dtype == np.float32
    assert times.shape == (len(plan.dispatches),)
    assert np.isfinite(times).all()
    assert times.min() >= 0
    assert times.sum() > 0


@pytest.mark.ci
def test_a_time_is_that_of_its_dispatch(runner: WgpuRunner) -> None:
    """The head reads 50,000 rows of 64 numbers where a projection reads 64: the times are in the
    order of the plan. The least of several: a busy machine holds up now this one, now that."""
    step = last_rows(begin(runner, 0, 20), 1)
    found = [runner.profile(step, 5) for _ in range(4)]
    times = np.min([each for each in found if each is not None], axis=0)
    plan = runner.plan_for(1, 1, capture=False, context=20).plan
    by_label = {d.label: float(ms) for d, ms in zip(plan.dispatches, times, strict=True)}
    for layer in range(runner.config.n_layers):
        for op in ("attn.out", "mlp.gate_up", "mlp.down"):
            assert by_label["head"] > 3 * by_label[f"layer{layer:02}.{op}"]


def test_captured_steps_have_times_too(runner: WgpuRunner) -> None:
    step = replace(last_rows(begin(runner, 0, 12), 2), capture=True)
    times = runner.profile(step, 1)
    plan = runner.plan_for(2, 1, capture=True, context=12).plan
    assert times is not None
    assert len(times) == len(plan.dispatches)


def test_the_step_is_really_run(runner: WgpuRunner) -> None:
    step = last_rows(begin(runner, 0, 18), 1)
    wanted = runner.logits(step)
    tensor = runner.plan_for(1, 1, capture=False, context=18).plan.dispatches[-1].tensors["logits"]
    runner._memory.write(tensor, np.full(tensor.n_bytes // 4, np.nan, np.float32))
    runner.profile(step, 1)
    got = runner._memory.read(tensor)[:1, : runner.config.vocab_size]
    assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32))


def test_profiling_changes_no_run(runner: WgpuRunner) -> None:
    """A run in slot 1 goes on as it would have, with a profile in a slot of its own after every few
    tokens; and so does the profiled sequence."""
    prompt = random_llama.ids(NAME, 9, seed=1)
    alone = driving.generate(runner, prompt, 12, slot=1, blocks=(4, 5))
    lent = begin(runner, 0, 33, first_block=6)
    before = runner.logits(last_rows(lent, 1))
    driving.begin(runner, 1, prompt, 21, (4, 5))
    driving.prefill(runner, prompt[:-1], slot=1)
    together, token = [], prompt[-1]
    for i in range(12):
        if i % 4 == 0:
            assert runner.profile(last_rows(lent, 2), 2) is not None
        row = Row(1, len(prompt) - 1 + i, token)
        runner.submit(Step((row,), (counted(GREEDY, 0, 1, i),)))
        together += runner.collect().samples
        token = together[-1].id
    assert together == alone
    after = runner.logits(last_rows(lent, 1))
    assert np.array_equal(before.view(np.uint32), after.view(np.uint32))


def test_without_a_clock_there_are_no_times(device: Device) -> None:
    blind = without(device, "timestamp-query", "timestamp-query-inside-passes")
    runner = driving.load(blind, random_llama.folder("tiny"))
    driving.begin(runner, 0, [1], 1)
    assert runner.profile(Step((Row(0, 0, 1),), (GREEDY,)), 1) is None


def test_profiling_requires_that_steps_in_flight_are_collected(runner: WgpuRunner) -> None:
    step = last_rows(begin(runner, 0, 3), 1)
    runner.submit(step)
    with pytest.raises(AssertionError, match="collect the steps in flight first"):
        runner.profile(step, 1)
    runner.collect()


def test_torch_has_no_dispatches() -> None:
    from gpu.pytorch.runner import TorchRunner

    runner = TorchRunner.load(random_llama.folder("tiny"), LoadOptions(dtype="f32"))
    assert runner.profile(Step((Row(0, 0, 1),)), 1) is None
    assert runner.list_plan(1, 1) is None
