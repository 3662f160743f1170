"""The same step many times: every time must give the same bits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from gpu.bench.contestants import greedy
from gpu.bench.machine.context import Case, Context, Outcome
from gpu.bench.machine.results import TIME_IS_UP, TIMES
from gpu.bench.subject import BenchModel
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Row, Step

LEAST_TIMES = 20
CONTEXT = {False: 300, True: 40}
"""Tokens before the step, whether the device is software: several splits of attention on a GPU."""
SHAPES = {False: "smol135", True: "tiny"}
"""Shape of the model, whether the device is software."""
DTYPES = ("f16", "q4")


def cases(context: Context) -> Iterator[Case]:
    shape = SHAPES[context.device.info.software]
    kinds = [(dtype, kind) for dtype in DTYPES for kind in ("decode", "prefill")]
    for i, (dtype, kind) in enumerate(kinds):
        run = partial(repeat, context, shape, dtype, kind, len(kinds) - i)
        yield f"{kind} step, {shape} {dtype}", run


def repeat(context: Context, shape: str, dtype: str, kind: str, n_left: int) -> Outcome:
    """Compare the logits of a step with those of its first run, bit for bit. `n_left`: cases that
    share the time that is left."""
    deadline = time.perf_counter() + context.seconds_left / n_left
    software = context.device.info.software
    n_rows = 1 if kind == "decode" else context.device.policy.max_rows
    subject = BenchModel.from_shape(shape)
    n_tokens = blocks_for(CONTEXT[software] + n_rows) * BLOCK_TOKENS
    runner = subject.runner(
        context.device, dtype, n_tokens, on_weights=lambda n: context.say("loading")
    )
    step = _step(runner, n_rows, CONTEXT[software])
    context.say("first step")
    first = runner.logits(step).view(np.uint32)
    n_done, n_different = 1, 0
    while n_done < TIMES and time.perf_counter() < deadline:
        n_different += not np.array_equal(runner.logits(step).view(np.uint32), first)
        n_done += 1
        context.say(f"{n_done} times")
    figures = {"rows": float(n_rows), "times": float(n_done), "different": float(n_different)}
    if n_different:
        note = f"{n_different} of {n_done} runs of the same step gave other bits than the first"
        return Outcome(figures, "wrong", note)
    if n_done < LEAST_TIMES:
        return Outcome(figures, "pending", f"{TIME_IS_UP} after {n_done} equal runs")
    return Outcome(figures)


def _step(runner: WgpuRunner, n_rows: int, n_before: int) -> Step:
    """Fill a cache with `n_before` random tokens; return a step of `n_rows` after them."""
    vocab = runner.config.vocab_size
    ids = np.random.default_rng(0).integers(0, vocab, n_before + n_rows).tolist()
    runner.begin_slot(0, np.array(ids, np.uint32))
    runner.set_blocks(0, list(range(blocks_for(len(ids)))))
    rows = tuple(Row(0, i, id) for i, id in enumerate(ids))
    most = runner.limits.max_rows
    for first in range(0, n_before, most):
        runner.submit(Step(rows[first : min(first + most, n_before)]))
        runner.collect()
    samples = np.linspace(0, n_rows - 1, min(n_rows, runner.limits.max_samples)).astype(int)
    return Step(rows[n_before:], tuple(greedy(int(row), 0) for row in samples))
