"""Bounds of memory: GPU bytes beside weights and KV cache, and objects made for each token."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import numpy as np
import pytest
import wgpu

from gpu.analysis.footprint import Footprint
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES, RandomCheckpoint
from gpu.kv.blocks import block_bytes, blocks_for
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.webgpu.buffers import UPLOAD_BYTES, Memory
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.models import random_llama
from tests.gpu.runners.test_wgpu_runner import live_objects, resident_bytes

CONTEXT = 2048
MOST_WORK = 0.10
"""Bytes of everything else on the device, as a share of weights and KV cache."""


def allocated() -> int:
    """Bytes of all buffers and textures of this process, those included that nobody counts."""
    gc.collect()
    counts = wgpu.diagnostics.object_counts.get_dict()
    return sum(int(counts[kind].get("resource_mem", 0)) for kind in ("Buffer", "Texture"))


def record_all(runner: WgpuRunner) -> None:
    """The plans of the smallest and the largest steps; those between share their memory."""
    limits = runner.limits
    for kind, most in (("plain", limits.max_rows), ("captured", limits.max_captured_rows)):
        for n_rows in (1, most):
            runner.plans.plan(n_rows, min(n_rows, limits.max_samples), kind)


@pytest.mark.parametrize(
    "dtype", ["f16", *(pytest.param(d, marks=pytest.mark.slow) for d in ("f32", "q8", "q4"))]
)
def test_all_but_weights_and_cache_is_little(device: Device, dtype: str) -> None:
    """SmolLM2-135M's shape with the KV cache of one conversation: as little as is of use, so that
    the bound is tight. What is counted is what there is."""
    config = LLAMA_SHAPES["smol135"]
    kv_bytes = blocks_for(CONTEXT) * block_bytes(config, FORMATS[dtype].kv)
    checkpoint = RandomCheckpoint(config)
    before = allocated()
    runner = WgpuRunner(
        device,
        config,
        checkpoint,
        LoadOptions(dtype=dtype, context=CONTEXT, kv_memory_bytes=kv_bytes),
    )
    record_all(runner)
    memory = runner.memory
    assert allocated() - before == memory.weights + memory.kv_cache + memory.work
    assert memory.work <= MOST_WORK * (memory.weights + memory.kv_cache), memory


def test_the_footprint_has_the_counts_of_tokens(device: Device) -> None:
    folder = random_llama.folder("odd100_tied")  # 301 tokens: counts are in groups of four
    options = LoadOptions(dtype="f32", slots=5)
    runner = driving.load(device, folder, "f32", n_slots=5)
    n_bytes = runner._tensors.sampler.texts.counts.n_bytes
    assert n_bytes == pytest.approx(Footprint.of(folder, options).counts, rel=4 / 301)


@pytest.mark.slow
def test_captured_steps_of_all_sizes_share_their_memory(device: Device) -> None:
    runner = driving.load(device, random_llama.folder("derived_head"))
    limits = runner.limits
    runner.plans.plan(limits.max_captured_rows, 1, "captured")
    before = runner.memory.work
    for n_rows in (1, 2, 4, 8, 16):
        runner.plans.plan(n_rows, 1, "captured")
    stats = sum((1 + 5 * runner.config.n_layers) * n * 4 for n in (1, 2, 4, 8, 16))
    assert runner.memory.work - before == stats


def test_weights_are_not_on_the_host_twice(device: Device) -> None:
    """The driver keeps staging memory for good, so one upload must leave it before the next."""
    if not device.info.software:
        pytest.skip("only a software device's memory is the process's own")
    memory = Memory(device)
    weights = [memory.weights(f"w{i}", 1024, UPLOAD_BYTES // 4096, 8) for i in range(16)]
    before = resident_bytes()
    for weight in weights:
        memory.write(weight, np.ones(UPLOAD_BYTES // 4, np.float32))
    memory.read(memory.zeros("last", (1,)))
    assert resident_bytes() - before < 1.25 * len(weights) * UPLOAD_BYTES


@pytest.mark.parametrize(
    "capture",
    [pytest.param(False, id="plain", marks=pytest.mark.slow), pytest.param(True, id="captured")],
)
def test_fifty_tokens_leak_no_memory(device: Device, capture: bool) -> None:
    """No plan, no dispatch, no byte, no GPU object and no Python object, while the context grows
    over several blocks."""
    runner = driving.load(device, random_llama.folder("derived_head"))
    prompt = random_llama.ids("derived_head", 9)
    driving.generate(runner, prompt, 60, capture=capture)
    before, python_before = everything(runner), len(gc.get_objects())
    driving.generate(runner, prompt, 60, capture=capture)
    after = everything(runner)
    more = Counter(after.pop("GPU objects")) - Counter(before.pop("GPU objects"))
    assert not more, "those of earlier tests may go meanwhile"
    assert after == before
    assert len(gc.get_objects()) - python_before < 10


def everything(runner: WgpuRunner) -> dict[str, Any]:
    """Collect garbage and count what a runner has made so far."""
    return {
        "dispatches": {key: len(p.plan.dispatches) for key, p in runner.plans.recorded.items()},
        "bytes": runner.memory,
        "GPU objects": live_objects(),
    }
