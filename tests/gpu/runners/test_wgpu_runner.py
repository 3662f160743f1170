"""A step's result does not depend on chunks, neighbours, slots, blocks, the source of the ids or on
capture; and a step costs no extra dispatches, objects or memory."""

from __future__ import annotations

import gc
import os
from concurrent.futures import wait
from concurrent.futures.thread import _WorkItem
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import wgpu

from gpu.checks.sampler_rig import settings
from gpu.plans import plan_cache
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import TokenBias
from gpu.step import FROM_GPU, Floats, KvVariant, Row, Step
from gpu.webgpu.compiler import Compiler
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernel
from tests.gpu.engine import driving
from tests.gpu.engine.driving import GREEDY, counted
from tests.gpu.models import random_llama

SEEDED = settings(
    temperature=0.9, top_k=50, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.25,
    logit_bias=(TokenBias(7, 1.5),), seed=2**40 + 3,
)  # fmt: skip
CASES = [
    ("derived_head", "f32"),
    ("head80_theta", "f16"),
    pytest.param(("derived_head", "f16"), marks=pytest.mark.slow),
    pytest.param(("head80_theta", "f32"), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def model(request: pytest.FixtureRequest, device: Device) -> tuple[str, WgpuRunner]:
    name, dtype = request.param
    return name, driving.load(device, random_llama.folder(name), dtype)


@pytest.mark.parity
def test_a_prompt_in_chunks_leaves_the_same_bits(model: tuple[str, WgpuRunner]) -> None:
    name, runner = model
    ids = random_llama.ids(name, 100)
    seen = []
    for chunk in (128, 33, 16, 7, 1):
        driving.begin(runner, 0, ids, len(ids))
        seen.append(driving.last_logits(runner, ids, chunk=chunk).view(np.uint32))
    for other in seen[1:]:
        assert np.array_equal(seen[0], other)


@pytest.mark.slow
@pytest.mark.parity
def test_a_context_of_several_splits_leaves_the_same_bits(device: Device) -> None:
    """Steps of many rows walk the splits in one workgroup, steps of few rows in one each."""
    runner = driving.load(device, random_llama.folder("long_context"), "f16")
    ids = random_llama.ids("long_context", device.policy.kv_split_size + 70)
    seen = []
    for chunk in (128, 7):
        driving.begin(runner, 0, ids, len(ids))
        seen.append(driving.last_logits(runner, ids, chunk=chunk).view(np.uint32))
    assert np.array_equal(seen[0], seen[1])
    entropies = [
        np.concatenate([part.entropy for part in driving.captured(runner, ids, chunk)])
        for chunk in (100, 5)
    ]
    assert np.array_equal(entropies[0].view(np.uint32), entropies[1].view(np.uint32))


def test_only_few_rows_with_a_long_context_are_split(device: Device) -> None:
    runner = driving.load(device, random_llama.folder("long_context"))
    split = device.policy.kv_split_size

    def grids(n_rows: int, context: int) -> dict[str, tuple[int, int, int]]:
        plan = runner.plan_for(n_rows, 1, capture=False, context=context).plan
        return {d.label: d.grid for d in plan.dispatches if d.label.startswith("layer00.attn.att")}

    attention, merge = "layer00.attn.attention", "layer00.attn.attention.merge"
    assert set(grids(1, split)) == {attention}
    assert grids(8, split + 1).keys() == {attention, merge}
    assert grids(1, split + 1)[attention][2] == 2
    assert grids(1, 2 * split + 1)[attention][2] == 4
    assert set(grids(16, 1300)) == {attention}


@pytest.mark.parity
def test_a_sequence_in_a_batch_gets_what_it_gets_alone(model: tuple[str, WgpuRunner]) -> None:
    """Three sequences of unlike lengths, their blocks interleaved and in falling order, decoding in
    the same steps as a prompt being read."""
    name, runner = model
    prompts = [random_llama.ids(name, n, seed=n) for n in (5, 40, 17)]
    samples = [replace(SEEDED, seed=i) for i in range(2)] + [GREEDY]
    n = 20
    alone = [
        driving.generate(runner, prompt, n, slot=1, sample=sample)
        for prompt, sample in zip(prompts, samples, strict=True)
    ]
    late = random_llama.ids(name, n, seed=99)  # read in slot 3, a token a step
    for slot, prompt in enumerate(prompts):
        blocks = range(18 - slot, -1, -4)
        driving.begin(runner, slot, prompt, len(prompt) + n, blocks)
        driving.prefill(runner, prompt[:-1], slot=slot, chunk=9)
    driving.begin(runner, 3, late, n, [19, 23])
    together: list[list[object]] = [[], [], []]
    for i in range(n):
        rows = [Row(s, len(p) - 1 + i, FROM_GPU if i else p[-1]) for s, p in enumerate(prompts)]
        rows.insert(1, Row(3, i, late[i]))
        drawn = [counted(samples[s], (0, 2, 3)[s], s, i) for s in (2, 0, 1)]
        runner.submit(Step(tuple(rows), tuple(drawn)))
        for s, sampled in zip((2, 0, 1), runner.collect().samples, strict=True):
            together[s].append(sampled)
    assert together == alone


def test_ids_stay_on_the_gpu_or_come_from_the_host(model: tuple[str, WgpuRunner]) -> None:
    name, runner = model
    prompt = random_llama.ids(name, 9)
    for sample in (GREEDY, SEEDED):
        kept = driving.generate(runner, prompt, 40, sample=sample)
        fed = driving.generate(runner, prompt, 40, sample=sample, from_gpu=False)
        assert kept == fed


def test_capturing_statistics_changes_no_token(model: tuple[str, WgpuRunner]) -> None:
    name, runner = model
    prompt = random_llama.ids(name, 9)
    for sample in (GREEDY, SEEDED):
        plain = driving.generate(runner, prompt, 40, sample=sample)
        assert driving.generate(runner, prompt, 40, sample=sample, capture=True) == plain


def test_a_seed_gives_the_same_text_and_another_gives_another(
    model: tuple[str, WgpuRunner],
) -> None:
    name, runner = model
    prompt = random_llama.ids(name, 9)
    texts = [
        [s.id for s in driving.generate(runner, prompt, 20, sample=replace(SEEDED, seed=seed))]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_steps_in_flight_are_collected_in_their_order(model: tuple[str, WgpuRunner]) -> None:
    name, runner = model
    assert runner.in_flight >= 2
    ids = random_llama.ids(name, runner.in_flight)
    driving.begin(runner, 0, ids, len(ids))
    steps = [Step((Row(0, i, id),), (counted(GREEDY, 0, 0, i),)) for i, id in enumerate(ids)]
    deinterleave = []
    for step in steps:
        runner.submit(step)
        deinterleave += runner.collect().samples
    driving.begin(runner, 0, ids, len(ids))
    for step in steps:
        runner.submit(step)
    assert [runner.collect().samples[0] for _ in steps] == deinterleave


def test_submitting_further_ahead_changes_no_token(device: Device) -> None:
    """One step at a time, as many as a software device takes, and as many as a GPU takes, submitted
    at once or by another thread."""
    prompt = random_llama.ids("derived_head", 9)
    texts = []
    for depth, apart in ((1, False), (2, False), (3, False), (3, True)):
        policy = replace(device.policy, steps_in_flight=depth, submits_apart=apart)
        runner = driving.load(replace(device, policy=policy), random_llama.folder("derived_head"))
        assert runner.in_flight == depth
        texts.append(driving.generate(runner, prompt, 40, sample=SEEDED, capture=True))
    assert texts == texts[:1] * 4


def test_times_of_a_captured_step(model: tuple[str, WgpuRunner]) -> None:
    name, runner = model
    if not runner.gpu.has_pass_timestamps:
        pytest.skip(f"{runner.device.name} takes no timestamps inside a pass")
    ids = random_llama.ids(name, 30)
    driving.captured(runner, ids, chunk=30)  # the first run of a pipeline compiles it
    driving.begin(runner, 0, ids, len(ids))
    rows = tuple(Row(0, i, id) for i, id in enumerate(ids))
    runner.submit(Step(rows, (counted(GREEDY, 29, 0, 0),), capture=True))
    result = runner.collect()
    captured = result.captured
    assert captured is not None
    assert captured.layer_ms is not None
    assert captured.embed_ms is not None
    assert captured.head_ms is not None
    assert result.gpu_ms is not None
    parts = [captured.embed_ms, *captured.layer_ms.ravel().tolist(), captured.head_ms]
    assert captured.layer_ms.shape == (runner.config.n_layers, 2)
    assert min(parts) >= 0
    assert min(captured.layer_ms.ravel()) > 0
    assert sum(parts) == pytest.approx(result.gpu_ms, rel=1e-3)


def test_the_layers_of_few_tokens_are_timed_where_timestamps_are_dear(
    model: tuple[str, WgpuRunner],
) -> None:
    name, runner = model
    every = runner.gpu.policy.timed_every
    if not runner.gpu.has_pass_timestamps or every == 1:
        pytest.skip(f"{runner.device.name} times every token's layers, or none's")
    ids = random_llama.ids(name, 4)
    for _ in range(2):
        prompt = driving.captured(runner, ids, chunk=4)
        assert all(each.layer_ms is not None for each in prompt)
    driving.begin(runner, 0, ids, len(ids) + 2 * every)
    timed = []
    for i in range(2 * every):
        row = Row(0, len(ids) + i, FROM_GPU)
        runner.submit(Step((row,), (counted(GREEDY, 0, 0, i + 1),), capture=True))
        result = runner.collect()
        assert result.captured is not None
        assert result.gpu_ms is not None
        timed.append(result.captured.layer_ms is not None)
    assert sum(timed) == 2
    assert timed == timed[:every] * 2


def test_how_many_dispatches_a_token_takes(model: tuple[str, WgpuRunner]) -> None:
    _, runner = model
    labels = [d.label for d in runner.plan_for(1, 1, capture=False).plan.dispatches]
    for layer in range(runner.config.n_layers):
        assert sum(label.startswith(f"layer{layer:02}.") for label in labels) <= 7
    assert [label for label in labels if not label.startswith("layer")] == [
        "embed", "head", "sample.keys", "sample",
    ]  # fmt: skip


@pytest.mark.parametrize("capture", [False, True], ids=["plain", "captured"])
def test_no_step_leaks_a_gpu_object(model: tuple[str, WgpuRunner], capture: bool) -> None:
    name, runner = model
    prompt = random_llama.ids(name, 9)
    driving.generate(runner, prompt, 100, capture=capture)
    before = live_objects()
    driving.generate(runner, prompt, 200, capture=capture)
    assert live_objects() == before


def test_no_timing_of_the_dispatches_leaks_a_gpu_object(model: tuple[str, WgpuRunner]) -> None:
    _, runner = model
    step = Step((Row(0, 0, 1),), (driving.GREEDY,))
    driving.begin(runner, 0, [1], 1)
    runner.profile(step, 1)
    before = live_objects()
    runner.profile(step, 1)
    assert live_objects() == before


def test_plans_of_the_latest_windows_alone_are_kept(
    model: tuple[str, WgpuRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each window that somebody asks about has kernels of its own."""
    monkeypatch.setattr(plan_cache, "MAX_KV_VARIANTS", 2)
    name, runner = model
    ids = random_llama.ids(name, 5)
    driving.begin(runner, 0, ids, len(ids))
    rows = tuple(Row(0, i, int(id)) for i, id in enumerate(ids))
    step = Step(rows, (replace(GREEDY, row=len(rows) - 1),))

    def ask(window: int) -> Floats:
        return runner.logits(replace(step, kv=KvVariant(window=window)))

    def kept() -> tuple[int, int]:
        """Return the number of kernels and of bind groups. Tests keep all pipelines."""
        n_bind_groups = live_objects()["native BindGroup"]
        return sum(isinstance(thing, Kernel) for thing in gc.get_objects()), n_bind_groups

    first = [ask(window) for window in (1, 2)]
    before = kept()
    for window in (3, 4):
        ask(window)
    assert kept() == before
    assert not np.array_equal(first[0], first[1])
    assert [ask(1).tolist(), ask(2).tolist()] == [found.tolist() for found in first[:2]]


def test_no_step_leaks_memory(model: tuple[str, WgpuRunner]) -> None:
    name, runner = model
    prompt = random_llama.ids(name, 9)
    driving.generate(runner, prompt, 300)
    before = resident_bytes()
    driving.generate(runner, prompt, 300)
    assert resident_bytes() - before < 300 * 2048, "more than 2 KiB stay for every token"


def test_no_step_creates_more_than_its_commands(
    model: tuple[str, WgpuRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """WebGPU wants a new encoder, pass and command buffer each time; nothing else may be made."""
    name, runner = model
    prompt = random_llama.ids(name, 9)
    driving.generate(runner, prompt, 20)

    def forbidden(*_args: object, **_named: object) -> None:
        raise AssertionError("a step creates GPU objects")

    device = type(runner.gpu.wgpu)
    makers = [m for m in dir(device) if m.startswith("create_") and m != "create_command_encoder"]
    assert {"create_buffer", "create_bind_group", "create_compute_pipeline"} <= set(makers)
    for maker in makers:
        monkeypatch.setattr(device, maker, forbidden)
    driving.generate(runner, prompt, 20)


def test_warming_up_compiles_all_that_a_conversation_needs_kernel_by_kernel(
    model: tuple[str, WgpuRunner],
) -> None:
    name, shared = model
    runner = driving.load(shared.gpu, random_llama.folder(name), shared.dtype)
    n_steps = sum(1 for _ in runner.warm_up())
    n_kernels = len(runner.plans.kernels)
    assert n_steps == n_kernels
    for capture in (False, True):
        prompt = random_llama.ids(name, 30)
        driving.captured(runner, prompt, chunk=16)
        driving.generate(runner, prompt, 5, capture=capture)
    assert len(runner.plans.kernels) == n_kernels


def finish_compiling() -> None:
    """Wait for all compilations in the background: of kernels that no step has used yet, and of
    runners of earlier tests that nothing refers to any more."""
    items = [thing for thing in gc.get_objects() if isinstance(thing, _WorkItem)]
    compilations = [
        item for item in items if getattr(item.fn, "__func__", None) is Compiler._compile
    ]
    # `wait` sees no cancelled one end.
    wait([item.future for item in compilations if not item.future.cancelled()])


def live_objects() -> dict[str, int]:
    """GPU objects by kind: those wgpu-py holds, and those alive in the native library."""
    finish_compiling()
    gc.collect()  # those of earlier tests
    counts = {k: int(v["count"]) for k, v in wgpu.diagnostics.object_counts.get_dict().items()}
    native = wgpu.diagnostics.wgpu_native_counts.get_dict()
    return counts | {f"native {k}": int(v["count"]) for k, v in native.items()}


def resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("resident memory is read from /proc, which this system lacks")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
