"""Drives a runner by hand, as the engine would: slots, blocks, rows, samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpu.checkpoint.reader import Checkpoint
from gpu.checks.rig import greedy
from gpu.config import ModelConfig
from gpu.kv.blocks import blocks_for
from gpu.load_options import LoadOptions
from gpu.lora.adapter import open_loras
from gpu.runner import Runner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import FROM_GPU, Captured, Floats, Row, Sample, Sampled, Step
from gpu.webgpu.device import Device

GREEDY = greedy(0)


def load(
    device: Device,
    folder: Path,
    dtype: str = "f32",
    n_slots: int = 4,
    kv_dtype: str | None = None,
    loras: Mapping[str, Path] | None = None,
    expert_slots: int | None = None,
) -> WgpuRunner:
    """A runner on a device that the whole suite shares; it must not be closed."""
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    opened = open_loras(loras or {}, config, checkpoint)
    return WgpuRunner(
        device,
        config,
        checkpoint,
        LoadOptions(dtype=dtype, kv_dtype=kv_dtype, slots=n_slots, expert_slots=expert_slots),
        loras=opened,
    )


def begin(
    runner: Runner, slot: int, ids: Sequence[int], n_tokens: int, blocks: Iterable[int] = ()
) -> None:
    """Start a sequence of up to `n_tokens` tokens, in these blocks or else the first ones."""
    runner.begin_slot(slot, np.array(ids, np.uint32))
    runner.set_blocks(slot, list(blocks) or list(range(blocks_for(n_tokens))))


def prefill(
    runner: Runner, ids: Sequence[int], *, slot: int = 0, first: int = 0, chunk: int = 128
) -> None:
    """Run tokens through the cache from position `first` on; nothing is sampled."""
    for at in range(0, len(ids), chunk):
        part = ids[at : at + chunk]
        runner.submit(Step(tuple(Row(slot, first + at + i, id) for i, id in enumerate(part))))
        runner.collect()


def all_logits(runner: Runner, ids: Sequence[int]) -> Floats:
    """Return the logits after each token, float32 (len(ids), vocab_size), chunk after chunk."""
    begin(runner, 0, ids, len(ids))
    parts = []
    most = min(8, runner.limits.max_samples)
    for first in range(0, len(ids), most):
        part = ids[first : first + most]
        rows = tuple(Row(0, first + i, id) for i, id in enumerate(part))
        samples = tuple(greedy(i) for i in range(len(part)))
        parts.append(runner.logits(Step(rows, samples)))
    return np.concatenate(parts)


def last_logits(runner: Runner, ids: Sequence[int], *, slot: int = 0, chunk: int = 128) -> Floats:
    """Return the logits after the last token, float32 (vocab_size,); its predecessors run in
    chunks."""
    prefill(runner, ids[:-1], slot=slot, chunk=chunk)
    row = Row(slot, len(ids) - 1, ids[-1])
    return runner.logits(Step((row,), (greedy(0, slot),)))[0]


def captured(runner: Runner, ids: Sequence[int], chunk: int) -> list[Captured]:
    """Return the statistics of every row, one entry for each chunk."""
    begin(runner, 0, ids, len(ids))
    found = []
    for first in range(0, len(ids), chunk):
        part = ids[first : first + chunk]
        rows = tuple(Row(0, first + i, id) for i, id in enumerate(part))
        runner.submit(Step(rows, capture=True))
        statistics = runner.collect().captured
        assert statistics is not None
        found.append(statistics)
    return found


def generate(
    runner: Runner,
    prompt: Sequence[int],
    n: int,
    *,
    slot: int = 0,
    blocks: Iterable[int] = (),
    sample: Sample = GREEDY,
    capture: bool = False,
    from_gpu: bool = True,
) -> list[Sampled]:
    """`n` tokens after the prompt, as many steps in flight as the runner takes when ids stay on the
    GPU; else each id is fed back by the host."""
    begin(runner, slot, prompt, len(prompt) + n, blocks)
    prefill(runner, prompt[:-1], slot=slot)
    found: list[Sampled] = []
    token = prompt[-1]
    for i in range(n):
        row = Row(slot, len(prompt) - 1 + i, token)
        runner.submit(Step((row,), (counted(sample, 0, slot, i),), capture))
        if not from_gpu or i >= runner.in_flight - 1:
            found += runner.collect().samples
        token = FROM_GPU if from_gpu else found[-1].id
    while len(found) < n:
        found += runner.collect().samples
    return found


def counted(sample: Sample, row: int, slot: int, index: int) -> Sample:
    """Return the settings of `sample` for one row of a step."""
    return replace(sample, row=row, slot=slot, index=index)
