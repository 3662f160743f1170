"""Questions about a step's plan are answered in pieces, each with a slot lent for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from gpu.engine.engine import Engine
from gpu.errors import InvalidRequest
from gpu.inspection.plan_questions import (
    AnswerSteps,
    digest_answer,
    peaks_answer,
    plan_answer,
    profile_answer,
)
from gpu.inspection.requests import Answer, Profile, StepPlan
from gpu.load_options import LoadOptions
from gpu.runners import wgpu_runner
from gpu.sampling_params import SamplingParams
from gpu.step import Floats, Step
from gpu.webgpu.device import Device
from gpu.webgpu.peaks import Peaks
from tests.gpu.engine import driving
from tests.gpu.models import random_llama

SLOT = 4


class Runner:
    """Runner that records how it was asked, with times that count up from run to run."""

    def __init__(self, n_dispatches: int = 3, clock: bool = True) -> None:
        self.dispatches = [{"label": f"d{i}"} for i in range(n_dispatches)]
        self.clock = clock
        self.steps: list[Step] = []
        self.lent: list[int] = []

    def list_plan(self, n_rows: int, context: int) -> dict[str, Any] | None:
        return {"dispatches": self.dispatches, "n_rows": n_rows, "context": context}

    def profile(self, step: Step, repeat: int) -> Floats | None:
        assert repeat == 1
        self.steps.append(step)
        wild = np.array([3, 1, 2, 50, 4])[len(self.steps) - 1]
        return np.full(len(self.dispatches), wild, np.float32) if self.clock else None

    @contextmanager
    def reserve(self, n_tokens: int) -> Iterator[int]:
        self.lent.append(n_tokens)
        yield SLOT
        self.lent.append(0)


def answer(pieces: AnswerSteps) -> tuple[Answer, int]:
    """Return the answer of the pieces and how often they yielded."""
    n = 0
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            return done.value, n
        n += 1


def asked(runner: Any, question: Profile) -> tuple[Answer, int]:
    return answer(profile_answer(runner, question, runner.reserve))


def test_a_profile_is_the_median_of_its_runs() -> None:
    runner = Runner()
    found, n_pieces = asked(runner, Profile(n_rows=2, context=7, repeat=5))
    assert found["ms"].tolist() == [3, 3, 3]
    assert found.info == {"dispatches": runner.dispatches}
    assert n_pieces == 5
    assert runner.lent == [9, 0] * 5, "a slot for nine tokens, given back after each run"


def test_the_rows_are_those_after_the_context() -> None:
    runner = Runner()
    asked(runner, Profile(n_rows=3, context=5, repeat=1))
    (step,) = runner.steps
    assert [(row.slot, row.position) for row in step.rows] == [(SLOT, 5), (SLOT, 6), (SLOT, 7)]
    assert [(sample.row, sample.slot) for sample in step.samples] == [(2, SLOT)]


def test_without_a_clock_there_is_no_array_and_no_second_run() -> None:
    runner = Runner(clock=False)
    found, _ = asked(runner, Profile(repeat=5))
    assert found.arrays == ()
    assert found.info == {"dispatches": runner.dispatches}
    assert len(runner.steps) == 1
    assert runner.lent[-1] == 0


@pytest.mark.parametrize("repeat", [0, 101, -1])
def test_a_repeat_out_of_range(repeat: int) -> None:
    runner = Runner()
    with pytest.raises(InvalidRequest, match=f"repeat is {repeat}, expected 1 to 100") as caught:
        asked(runner, Profile(repeat=repeat))
    assert caught.value.param == "repeat"
    assert runner.lent == []


def test_an_engine_without_a_plan() -> None:
    from gpu.pytorch.runner import TorchRunner

    runner = TorchRunner.load(random_llama.folder("tiny"), LoadOptions(dtype="f32"))
    assert answer(plan_answer(runner, StepPlan()))[0] == Answer({}, ())
    assert answer(peaks_answer(runner))[0] == Answer({}, ())
    assert answer(digest_answer(runner))[0] == Answer({}, ())

    @contextmanager
    def reserve(n_tokens: int) -> Iterator[int]:
        yield 0

    found, _ = answer(profile_answer(runner, Profile(), reserve))
    assert found == Answer({"dispatches": []}, ())


def test_the_peaks_of_a_device_are_measured_once(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = driving.load(device, random_llama.folder("tiny"))
    found, _ = answer(peaks_answer(runner))
    assert found.info.keys() == {field.name for field in fields(Peaks)}
    peaks = [found.info[name] for name in ("bytes_per_s", "flops_per_s")]
    assert all(math.isfinite(peak) and peak > 0 for peak in peaks)
    monkeypatch.setattr(wgpu_runner, "measure_peaks", None)
    assert answer(peaks_answer(runner))[0] == found


def test_a_run_changes_no_weight_and_a_changed_one_shows(device: Device) -> None:
    runner = driving.load(device, random_llama.folder("tiny"))
    tensors = runner._memory.weight_tensors
    before, n_pieces = answer(digest_answer(runner))
    assert before.info["n_tensors"] == len(tensors) == n_pieces
    assert before.info["n_bytes"] == runner.memory.weights
    driving.all_logits(runner, [3, 5, 7])
    assert answer(digest_answer(runner))[0] == before
    changed = runner._memory.read(tensors[-1])
    changed.reshape(-1).view(np.uint8)[-1] ^= 1
    runner._memory.write(tensors[-1], changed)
    assert answer(digest_answer(runner))[0].info["sha256"] != before.info["sha256"]


def test_a_real_plan_and_its_times(device: Device) -> None:
    runner = driving.load(device, random_llama.folder("derived_head"))

    @contextmanager
    def reserve(n_tokens: int) -> Iterator[int]:
        driving.begin(runner, 0, [0], n_tokens)
        yield 0

    plan, _ = answer(plan_answer(runner, StepPlan(n_rows=1, context=20)))
    assert plan.info == runner.list_plan(1, 20)
    assert plan.arrays == ()
    found, _ = answer(profile_answer(runner, Profile(1, 20, repeat=2), reserve))
    assert found.info["dispatches"] == plan.info["dispatches"]
    if device.has_timestamps:
        assert found["ms"].shape == (len(plan.info["dispatches"]),)
        assert found["ms"].sum() > 0
    with pytest.raises(InvalidRequest, match=r"^n_rows is 0"):
        answer(plan_answer(runner, StepPlan(n_rows=0)))


def test_a_run_goes_on_as_if_nobody_had_asked() -> None:
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True)
    ids = random_llama.ids("derived_head", 20)
    engine = Engine.load(random_llama.folder("derived_head"), slots=1)
    try:
        alone = [token.id for token in engine.generate(ids, params)]
        run = engine.generate(ids, params)
        beside = [next(iter(run)).id]
        profile = engine.inspect(Profile(n_rows=4, context=100, repeat=3))
        plan = engine.inspect(StepPlan(n_rows=4, context=100)).result(60).info
        beside += [token.id for token in run]
        assert beside == alone
        assert profile.result(60).info["dispatches"] == plan["dispatches"]
        with pytest.raises(InvalidRequest, match=r"^context is 600"):
            engine.inspect(StepPlan(context=600)).result(60)
    finally:
        engine.close()
