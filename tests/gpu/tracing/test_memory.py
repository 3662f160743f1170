"""Every plan of a model with heads of 128 numbers stays within its arrays, and no result depends on
what memory held before.

A model of this shape ended a text with "not a number" on an H100. Plans are those of a discrete
GPU; the model has one layer, as all have the same dispatches, and no width that needs padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gpu.checkpoint.random_checkpoint import RandomCheckpoint
from gpu.checks.rig import normal
from gpu.load_options import LoadOptions
from gpu.plans.capture_buffers import ROW_BUCKETS
from gpu.plans.plan_cache import LEAST_ROWS, RecordedPlan
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Row, Sample, Step
from gpu.webgpu.buffers import Tensor
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.plan import Dispatch
from tests.gpu.ops.real_models import real_models
from tests.gpu.tracing.shape_plans import open_as_gpu
from tests.gpu.tracing.transformed import (
    COUNTS,
    SITE_WORDS,
    TransformedKernels,
    counting,
    with_workgroup_memory_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.parity, pytest.mark.timeout(3600)]

CONTEXT = 4096
KINDS = ("plain", "captured", "logits", "weights", "states", "last_hidden", "unfused")
LASTS = (2503, CONTEXT - 1)
"""Positions of the last row, beside the first ones: 20 splits, and all 32."""
NAN, INFINITY, STALE = 0x7FC0BEEF, 0x7F800000, 0xC2F6E979
N_KEYS = 64
"""Most keys whose attention weights are kept."""

NOT_OF_ROWS = ("attention.values", "attention.states")
"""Results of each split, which the merge has read."""


class Memory128:
    """The model on a device, its dispatches one by one."""

    def __init__(self) -> None:
        config = replace(real_models()["head128"], context=CONTEXT)
        options = LoadOptions(dtype="f32", slots=2, context=CONTEXT, kv_memory_bytes=24 << 20)
        self.device = open_as_gpu()
        self.runner = WgpuRunner(self.device, config, RandomCheckpoint(config), options)
        self.memory, self.slot = self.runner._memory, self.runner.limits.inspection_slot
        self._calls = open_calls(self.device)
        n_blocks = self.runner.limits.n_blocks
        self.blocks = np.random.default_rng(0).permutation(n_blocks)[: CONTEXT // 16].tolist()
        self.runner.set_blocks(self.slot, self.blocks)
        pool = self.runner.pools.keys[0]
        self.cached = [normal(np.random.default_rng(i), *pool.shape) for i in range(2)]

    def plans(self) -> Iterator[tuple[RecordedPlan, Step]]:
        """Yield every plan, and a step that leaves some of its rows empty."""
        limits = self.runner.limits
        for kind in KINDS:
            most = limits.max_captured_rows if kind in ("captured", "states") else limits.max_rows
            for bucket in ROW_BUCKETS:
                if not LEAST_ROWS.get(kind, 1) <= bucket <= most:
                    continue
                n = bucket - bucket // 4
                for last in {n - 1, *LASTS} if bucket <= 8 else {LASTS[0]}:
                    yield self._plan(kind, bucket, range(last + 1 - n, last + 1))

    def _plan(self, kind: str, bucket: int, positions: range) -> tuple[RecordedPlan, Step]:
        rows = tuple(Row(self.slot, p, 3 + p % 900) for p in positions)
        sampled = (len(rows) - 1,) if kind in ("plain", "captured", "logits") else ()
        samples = tuple(Sample(row, self.slot, 7, 0, verifies=True) for row in sampled)
        step = Step(rows, samples, capture=kind == "captured")
        plan = self.runner.plans.plan(bucket, len(samples), kind, step.context)
        return plan, step

    def begin(self, plan: RecordedPlan, step: Step, bits: int) -> None:
        """Write a step and the keys and values before it; everything else that the plan writes, and
        the cache beyond, begins as `bits`."""
        first, memory = step.rows[0].position, self.memory
        self.runner._queue._write_step(step)
        for pool, numbers in zip(self._pools, self.cached, strict=True):
            whole = np.full(pool.shape, bits, np.uint32).view(np.float32)
            for i in range(-(-first // 16)):
                n, block = min(16, first - 16 * i), self.blocks[i]
                whole[block, :, :n] = numbers[block, :, :n]
            memory.write(pool, whole)
        if plan.key.kind == "weights":
            keys = self.runner.plans.attention_capture.keys
            memory.write(keys, np.array([0, self._n_keys(step)], np.uint32))
        for tensor in self._work(plan):
            memory.write(tensor, np.full(tensor.n_bytes // 4, bits, np.uint32))

    def _n_keys(self, step: Step) -> int:
        """Return the keys whose attention weights there is room for."""
        n = len(step.rows) * self.runner.config.n_heads
        return min(N_KEYS, self.runner.plans.weights_room // n)

    @property
    def _pools(self) -> tuple[Tensor, Tensor]:
        return self.runner.pools.keys[0], self.runner.pools.values[0]

    def _work(self, plan: RecordedPlan) -> list[Tensor]:
        found = {}
        for dispatch in plan.plan.dispatches:
            for b in dispatch.kernel.bindings:
                tensor = dispatch.tensors[b.name]
                if b.kind == "storage" and tensor.dtype == "f32":
                    found[id(tensor.buffer), tensor.offset] = tensor
        return [t for t in found.values() if t.buffer not in [p.buffer for p in self._pools]]

    def run(self, dispatch: Dispatch, kernels: TransformedKernels) -> None:
        pipeline = kernels.of(dispatch.kernel)[0].pipeline
        self._submit((pipeline, dispatch.bind_group, *dispatch.grid))

    def counted(
        self, dispatch: Dispatch, kernels: TransformedKernels, counts: Tensor
    ) -> tuple[int, list[str]]:
        """Run a dispatch; return its accesses, and what lies outside of an array."""
        kernel, sites = kernels.of(dispatch.kernel)
        assert SITE_WORDS * len(sites) <= counts.shape[0]
        self.memory.write(counts, np.zeros(counts.shape, np.uint32))
        tensors = {**dispatch.tensors, COUNTS: counts}
        entries = [
            {"binding": b.index, "resource": tensors[b.name].binding} for b in kernel.bindings
        ]
        bound = self.device.wgpu.create_bind_group(
            label=dispatch.label, layout=kernel.layout, entries=entries
        )
        self._submit((kernel.pipeline, bound, *dispatch.grid))
        words = self.memory.read(counts)[: SITE_WORDS * len(sites)].reshape(-1, SITE_WORDS)
        outside = [
            f"{dispatch.label}: {site.text} is {most} of {length}, {n} times"
            for site, (_, n, most, length) in zip(sites, words.tolist(), strict=True)
            if n
        ]
        return int(words[:, 0].sum()), outside

    def _submit(self, in_pass: tuple[object, object, int, int, int]) -> None:
        calls = self._calls
        calls.submit(calls.encode(calls.prepare(StepCommands(((in_pass,),)))))
        calls.wait()

    def results(self, plan: RecordedPlan, step: Step) -> dict[str, npt.NDArray[np.float32]]:
        """Return what a plan leaves in the cache, in activations and in what it captures, of the
        rows of the step."""
        n = len(step.rows)
        at = [(self.blocks[row.position // 16], row.position % 16) for row in step.rows]
        found = {
            name: np.stack([cells[block, :, cell] for block, cell in at])
            for name, cells in zip("kv", map(self.memory.read, self._pools), strict=True)
        }
        for tensor in self._work(plan):
            if tensor.name in NOT_OF_ROWS:
                continue
            if tensor.name.startswith("inspect.weights"):
                kept = n * self.runner.config.n_heads * self._n_keys(step)
                found[tensor.name] = self.memory.read(tensor).reshape(-1)[:kept]
                continue
            n_lines = len(step.samples) if tensor.name == "logits" else n
            if tensor.shape[0] >= n_lines:
                found[tensor.name] = self.memory.read(tensor)[:n_lines]
        return found


@pytest.fixture(scope="module")
def model() -> Iterator[Memory128]:
    one = Memory128()
    yield one
    one.runner.close()


def test_no_index_is_outside_of_its_array(model: Memory128) -> None:
    kernels, seen = TransformedKernels(model.device, counting), set[object]()
    counts = model.memory.zeros("counts", (4096,), "u32")
    n_accesses, outside = 0, list[str]()
    for plan, step in model.plans():
        model.begin(plan, step, 0)
        for dispatch in plan.plan.dispatches:
            n, found = model.counted(dispatch, kernels, counts)
            n_accesses += n
            outside += [f"{tuple(plan.key[:4])}, {line}" for line in found]
            seen.add(dispatch.kernel.name)
    kernels.close()
    assert not outside, outside[:8]
    assert n_accesses > 1e7
    assert seen >= {"qkv", "attention", "attention_merge", "matmul", "rms_norm_split", "sample"}


@pytest.mark.parametrize("bits", [NAN, INFINITY, STALE], ids=["nan", "infinity", "stale"])
def test_no_result_depends_on_what_memory_held_before(model: Memory128, bits: int) -> None:
    as_is = TransformedKernels(model.device, lambda source: (source, ()))
    poisoned = TransformedKernels(model.device, with_workgroup_memory_of(bits))
    n = 0
    for plan, step in model.plans():
        found = []
        for start, kernels in ((0, as_is), (bits, poisoned)):
            model.begin(plan, step, start)
            for dispatch in plan.plan.dispatches:
                model.run(dispatch, kernels)
            found.append(model.results(plan, step))
        clean, after = found
        for name, numbers in clean.items():
            where = f"{name}, {tuple(plan.key[:4])}"
            assert np.isfinite(numbers).all(), where
            same = np.array_equal(after[name].view(np.uint32), numbers.view(np.uint32))
            assert same, f"{where}: {after[name]} instead of {numbers}"
            n += numbers.size
    for kernels in (as_is, poisoned):
        kernels.close()
    assert n > 1e6
