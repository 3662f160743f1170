"""Checks of whole models: a tiny one of every architecture against NumPy, in every weight and KV
format for Llama."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gpu.architectures import ARCHITECTURES
from gpu.checkpoint.packing import FORMATS
from gpu.checks.numpy_model import NumpyModel
from gpu.checks.rig import Array, Rig, greedy
from gpu.checks.tiny_models import VOCAB, tiny_model
from gpu.kv.blocks import blocks_for
from gpu.kv.formats import KV_FORMATS
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Row, Step

N_TOKENS = 60
BOUNDS = {"f32": 3e-5, "f16": 1e-3, "q8": 5e-3, "q8q4": 2e-2, "rotated4": 2e-2}
"""Largest error of a logit relative to the largest logit, by KV format."""


def check_model(rig: Rig, model_type: str, dtype: str = "f32", kv_dtype: str | None = None) -> None:
    """Compare logits of a prompt in one step, of the next tokens one by one, and of eight rows."""
    config, weights = tiny_model(model_type)
    options = LoadOptions(dtype=dtype, kv_dtype=kv_dtype, slots=1)
    runner = WgpuRunner(rig.device, config, weights, options)
    ids = np.random.default_rng(0).integers(0, VOCAB, N_TOKENS).tolist()
    got = _device_logits(runner, ids)
    want = NumpyModel(runner).logits(ids)[-len(got) :]
    bound = BOUNDS[runner.pools.dtype] * np.abs(want).max()
    rig.compare("logits", f"{model_type} {dtype}", got, want, bound)


def _device_logits(runner: WgpuRunner, ids: Sequence[int]) -> Array:
    """Return logits after the last tokens of a text; those before run as one prefill step."""
    runner.begin_slot(0, np.array(ids, np.uint32))
    runner.set_blocks(0, list(range(blocks_for(len(ids)))))
    rows = [Row(0, i, id) for i, id in enumerate(ids)]
    n_prefill = len(ids) - 4 - runner.limits.max_samples
    runner.submit(Step(tuple(rows[:n_prefill])))
    runner.collect()
    steps = [rows[n_prefill + i : n_prefill + i + 1] for i in range(4)]
    steps.append(rows[n_prefill + 4 :])
    parts = [
        runner.logits(Step(tuple(some), tuple(greedy(i) for i in range(len(some)))))
        for some in steps
    ]
    return np.concatenate(parts)


CHECKS: dict[str, Callable[[Rig], None]] = {
    **{f"{name} f32": partial(check_model, model_type=name) for name in ARCHITECTURES},
    **{
        f"llama {dtype}, {kv} cache": partial(
            check_model, model_type="llama", dtype=dtype, kv_dtype=kv
        )
        for dtype, kv in (
            *((dtype, "f16") for dtype in FORMATS),
            *(("f16", kv) for kv in KV_FORMATS if kv not in ("f32", "f16")),
        )
    },
}
