"""Time of a decode step by context length."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from gpu.bench.contestants import decode_steps, in_flight
from gpu.bench.work import kv_bytes, weight_bytes
from gpu.kv.blocks import blocks_for
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import StepResult

STEPS = 8
"""Decode steps of one repetition at each context."""


@dataclass(frozen=True, slots=True)
class ContextResult:
    """A decode step after `context` tokens: milliseconds, bytes read, and the growth of both
    relative to the shortest context."""

    context: int
    step_ms: float
    weight_bytes: int
    kv_bytes: int
    time_growth: float
    bytes_growth: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(runner: WgpuRunner, contexts: list[int], repeat: int) -> list[ContextResult]:
    """Measure every context, interleaved. Nothing is prefilled: the contents of the cache do not
    affect the time."""
    contexts = sorted(contexts)
    times: dict[int, list[float]] = {context: [] for context in contexts}
    for repetition in range(repeat + 1):
        for context in contexts:
            step_ms = _step_ms(runner, context)
            if repetition:  # the first one is a warm-up
                times[context].append(step_ms)
    weights = weight_bytes(runner)
    medians = {context: statistics.median(times[context]) for context in contexts}
    first = contexts[0]
    return [
        ContextResult(
            context=context,
            step_ms=round(medians[context], 3),
            weight_bytes=weights,
            kv_bytes=kv_bytes(runner, context),
            time_growth=round(medians[context] / medians[first], 3),
            bytes_growth=round(
                (weights + kv_bytes(runner, context)) / (weights + kv_bytes(runner, first)), 3
            ),
        )
        for context in contexts
    ]


def _step_ms(runner: WgpuRunner, context: int) -> float:
    runner.set_blocks(0, list(range(blocks_for(context + STEPS))))
    began = time.perf_counter()
    results: list[StepResult] = in_flight(runner, decode_steps(context, STEPS))
    return (time.perf_counter() - began) * 1e3 / len(results)


def lines(found: list[ContextResult]) -> list[str]:
    """Return a table."""
    rows = [f"{'context':>8}{'step ms':>10}{'KV MB':>9}{'time ×':>9}{'bytes ×':>9}"]
    rows += [
        f"{at.context:8}{at.step_ms:10.2f}{at.kv_bytes / 1e6:9.1f}"
        f"{at.time_growth:9.2f}{at.bytes_growth:9.2f}"
        for at in found
    ]
    return rows
