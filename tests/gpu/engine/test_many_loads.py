"""Engines that are loaded and closed in one process, as a program in Python does."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest
import wgpu

from gpu.engine.engine import Engine
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from tests.gpu.models import random_llama

N_LOADS = 50
SHAPES = ("tiny", "gqa8")


def held() -> dict[str, int]:
    """Return how many GPU objects of each kind there are, threads, and descriptors where the system
    lists them."""
    gc.collect()  # models and their buffers refer to each other
    counts = wgpu.diagnostics.wgpu_native_counts.get_dict()
    found = {kind: int(row["count"]) for kind, row in counts.items()}
    descriptors = Path("/proc/self/fd")
    n_open = len(os.listdir(descriptors)) if descriptors.exists() else 0
    return found | {"threads": threading.active_count(), "descriptors": n_open}


@pytest.mark.slow
def test_fifty_engines_leave_nothing_on_the_device() -> None:
    folders = [random_llama.folder(name) for name in SHAPES]
    for folder in folders:  # the first ones open what stays
        write_with(folder)
    before = held()
    for i in range(N_LOADS):
        write_with(folders[i % len(folders)])
        assert held() == before, f"after engine {i}"


def write_with(folder: Path) -> None:
    engine = Engine.load(folder)
    run = engine.submit(Request([1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True)))
    assert len(list(run)) == 4
    engine.close()
