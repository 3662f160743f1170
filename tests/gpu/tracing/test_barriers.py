"""Every barrier of the kernels for GPUs orders something: without it, lanes race."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from gpu.checks.sampler_rig import SamplerRig
from gpu.kv.formats import KV_FORMATS
from gpu.step import Row, Step
from gpu.tracing.races import races
from gpu.tracing.tracer import Tracer
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Dispatch, Plan
from tests.gpu.engine import driving
from tests.gpu.models import random_llama, random_models
from tests.gpu.ops.rig import Rig, as_kind

pytestmark = pytest.mark.slow

BARRIER = re.compile(r"workgroupBarrier\(\);|workgroupUniformLoad\(&(\w+)\)")
FUNCTION = re.compile(r"^fn (\w+)", re.MULTILINE)
SHARED_INT8_MOE = "olmoe_normalised_bias"
"""A mixture whose experts get 64 of 64 rows, with three blocks in a row: a shared tile of int8 rows
copies two at a time."""
LARGE_HEADS = "head128_llama3"
"""A model whose keys take several blocks of shared attention; its context takes two splits."""
SPARE = {"quantize_activations: workgroup_sum, barrier 3"}
"""Barriers that order nothing: the last of a sum is for kernels that sum again."""
TILE_BARRIERS = [
    f"{kernel}{rows}: matmul_tile, barrier {i}"
    for kernel in ("matmul", "qkv", "moe_matmul")
    for rows in ("", " of int8 rows")
    for i in (1, 2)
]
"""Those of shared tiles."""
ATTENTION_BARRIERS = [
    f"attention of shared keys: {function}, barrier {i}"
    for function, n in (("score_split", 2), ("weigh_split", 4), ("add_values", 3))
    for i in range(1, n + 1)
]


def without_barriers(source: str) -> Iterator[tuple[str, str]]:
    """Each barrier's name, its function and its number there, and the source without it."""
    counts: Counter[str] = Counter()
    for match in BARRIER.finditer(source):
        function = FUNCTION.findall(source[: match.start()])[-1]
        counts[function] += 1
        name = f"{function}, barrier {counts[function]}"
        yield name, source[: match.start()] + (match[1] or "") + source[match.end() :]


def dispatches(device: Device) -> Iterator[Dispatch]:
    """Dispatches that run every kernel with barriers, each after the step it is made for."""
    device = as_kind(device, software=False)
    device = replace(device, policy=replace(device.policy, shared_attention_workgroups=1))
    q8 = replace(device, tuning=replace(device.tuning, q8_activations=True))
    models = [(device, random_llama.folder("tiny"), "q4", kv) for kv in KV_FORMATS]
    models += [
        (device, random_models.folder(name), "f16", None) for name in random_models.ONE_OF_EACH_MOE
    ]
    models += [
        (device, random_models.folder(name), "q8", None) for name in random_models.ONE_OF_EACH
    ]
    large = random_llama.folder(LARGE_HEADS)
    models.append((device, large, "f16", None))
    models += [
        (q8, folder, dtype, None)
        for folder in (random_llama.folder("odd172_bias"), random_models.folder(SHARED_INT8_MOE))
        for dtype in ("q8", "q4")
    ]
    sample = replace(driving.GREEDY, temperature=0.8, top_k=9, top_p=0.9, min_p=0.01)
    for of, folder, dtype, kv_dtype in models:
        runner = driving.load(of, folder, dtype, kv_dtype=kv_dtype)
        ids = [
            3 + 7 * i % (runner.config.vocab_size - 3)
            for i in range(200 if folder == large else 60)
        ]
        driving.begin(runner, 0, ids, len(ids) + 4)
        driving.prefill(runner, ids)
        for n_rows, capture in ((1, True), (5, False), (40, True)):
            first = len(ids) - n_rows
            rows = tuple(Row(0, first + i, ids[first + i]) for i in range(n_rows))
            runner.submit(Step(rows, (replace(sample, row=n_rows - 1),), capture))
            runner.collect()
            yield from runner.plan_for(n_rows, 1, capture, len(ids)).plan.dispatches
    yield from sampler_dispatches(device)


class KeptPlans(Rig):
    """A rig that keeps what it ran."""

    plans: ClassVar[list[Plan]] = []

    def _submit(self, plan: Plan) -> None:
        self.plans.append(plan)
        super()._submit(plan)


def sampler_dispatches(device: Device) -> Iterator[Dispatch]:
    """The sampler where more tokens are left than it can sort, and where it has sorted them into
    bins."""
    logits = np.random.default_rng(0).normal(size=(1, 4000)).astype(np.float32)
    for bins_from in (None, 1):
        kind = replace(device, policy=replace(device.policy, bins_from=bins_from))
        rig = KeptPlans(kind, Kernels(kind))
        SamplerRig(rig, 4000).choose(logits, [replace(driving.GREEDY, temperature=1.0, top_p=0.9)])
        yield from rig.plans[-1].dispatches


@pytest.mark.timeout(1200)
def test_lanes_race_without_any_of_the_barriers(traceable: Device, tracer: Tracer) -> None:
    noticed: dict[str, bool] = {}
    seen = set()
    for dispatch in dispatches(traceable):
        kernel = dispatch.kernel
        key = (kernel.source, tuple(sorted(kernel.constants.items())), dispatch.grid)
        rows = " of int8 rows" if "add_int8_half" in kernel.source else ""
        rows += " of shared keys" if "fn copy_keys" in kernel.source else ""
        barriers = [
            (broken, f"{kernel.name}{rows}: {name}")
            for name, broken in without_barriers(kernel.source)
        ]
        missing = [(source, name) for source, name in barriers if not noticed.get(name)]
        if key in seen or not missing:
            continue
        seen.add(key)
        n_phases = tracer.run(dispatch).phase.max(initial=0)
        for source, name in missing:
            trace = tracer.run(replace(dispatch, kernel=replace(kernel, source=source)))
            if trace.phase.max(initial=0) < n_phases:  # else the barrier is not reached
                noticed[name] = bool(races(trace))
    assert len(noticed) > 30
    assert set(TILE_BARRIERS) <= set(noticed)
    assert set(ATTENTION_BARRIERS) <= set(noticed)
    assert [name for name, found in noticed.items() if not found and name not in SPARE] == []
