"""Contestants of the benchmark: each runs the same prompt and number of decode steps, interleaved
with the others, and records the times of each repetition."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gpu.kv.blocks import blocks_for
from gpu.runner import Runner
from gpu.step import FROM_GPU, Row, Sample, Step, StepResult

STEP_TIMES = ("encode_ms", "finish_ms", "submit_ms", "gpu_ms", "wait_ms", "read_ms")


@dataclass(slots=True)
class Figures:
    """Measurements of one contestant, one entry per repetition."""

    prefill_tok_s: list[float] = field(default_factory=list)
    decode_tok_s: list[float] = field(default_factory=list)
    encode_ms: list[float] = field(default_factory=list)
    finish_ms: list[float] = field(default_factory=list)
    submit_ms: list[float] = field(default_factory=list)
    gpu_ms: list[float] = field(default_factory=list)
    wait_ms: list[float] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    gpu_gap_share: list[float] = field(default_factory=list)

    def median(self, name: str) -> float | None:
        """Return the median; None if there are no values, e.g. GPU times without timestamps."""
        values = getattr(self, name)
        return statistics.median(values) if values else None


class Contestant(Protocol):
    name: str
    figures: Figures

    def run(self, prompt: list[int], n_tokens: int) -> None:
        """Run one repetition: prefill the prompt and sample a token, then `n_tokens` decode steps.
        Adds an entry to `figures`."""
        ...


class RunnerContestant:
    """A runner of the engine, with the engine's in-flight depth."""

    def __init__(self, name: str, runner: Runner, capture: bool = False) -> None:
        self.name = name
        self.runner = runner
        self.capture = capture
        self.figures = Figures()

    def run(self, prompt: list[int], n_tokens: int) -> None:
        runner = self.runner
        runner.begin_slot(0, np.array(prompt, np.uint32))
        runner.set_blocks(0, list(range(blocks_for(len(prompt) + n_tokens))))
        began = time.perf_counter()
        in_flight(runner, self._prefill_steps(prompt))
        prefilled = time.perf_counter()
        steps = decode_steps(len(prompt), n_tokens, self.capture)
        results = in_flight(runner, steps)
        figures = self.figures
        figures.decode_tok_s.append(n_tokens / (time.perf_counter() - prefilled))
        figures.prefill_tok_s.append(len(prompt) / (prefilled - began))
        for name in STEP_TIMES:
            values = [v for r in results if (v := getattr(r, name)) is not None]
            if values:
                getattr(figures, name).append(statistics.median(values))
        if (share := gpu_gap_share(results)) is not None:
            figures.gpu_gap_share.append(share)

    def _prefill_steps(self, prompt: list[int]) -> list[Step]:
        limits = self.runner.limits
        size = limits.max_captured_rows if self.capture else limits.max_rows
        steps = []
        for first in range(0, len(prompt), size):
            ids = prompt[first : first + size]
            rows = tuple(Row(0, first + i, id) for i, id in enumerate(ids))
            last = first + size >= len(prompt)
            samples = (greedy(len(rows) - 1, 0),) if last else ()
            steps.append(Step(rows, samples, self.capture))
        return steps


def in_turns(
    contestants: Sequence[Contestant], prompt: list[int], n_tokens: int, repeat: int
) -> None:
    """Run each contestant `repeat` times, interleaved, after a warm-up that records and compiles.

    Every second round goes backwards, so that drift and after-effects of a contestant affect all of
    them.
    """
    for contestant in contestants:
        contestant.run(prompt, n_tokens)
        contestant.figures = Figures()
    for turn in range(repeat):
        for contestant in contestants[:: -1 if turn % 2 else 1]:
            contestant.run(prompt, n_tokens)


def speedup(own: Figures, other: Figures, name: str) -> float:
    """Return the median over repetitions of `own`'s speed over `other`'s in the same round: on a
    shared machine both vary together."""
    mine: list[float] = getattr(own, name)
    theirs: list[float] = getattr(other, name)
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def decode_steps(n_context: int, n_tokens: int, capture: bool = False) -> list[Step]:
    """Return `n_tokens` greedy steps of slot 0 after `n_context` tokens."""
    return [
        Step((Row(0, n_context + i, FROM_GPU),), (greedy(0, i + 1),), capture)
        for i in range(n_tokens)
    ]


def in_flight(runner: Runner, steps: Sequence[Step]) -> list[StepResult]:
    """Submit and collect the steps with the runner's in-flight depth, as the engine does."""
    results = []
    for i, step in enumerate(steps):
        runner.submit(step)
        if i + 1 >= runner.in_flight:
            results.append(runner.collect())
    while len(results) < len(steps):
        results.append(runner.collect())
    return results


def gpu_gap_share(results: Sequence[StepResult]) -> float | None:
    """Return the share of the time from the first step's begin to the last step's end in which the
    device was idle, by its clock; None without timestamps."""
    spans = [
        (r.gpu_began_ms, r.gpu_began_ms + r.gpu_ms)
        for r in results
        if r.gpu_began_ms is not None and r.gpu_ms is not None
    ]
    if len(spans) < 2:
        return None
    idle = sum(max(0.0, after[0] - before[1]) for before, after in itertools.pairwise(spans))
    return idle / (spans[-1][1] - spans[0][0])


def greedy(row: int, index: int) -> Sample:
    """Return a greedy sample of slot 0 after `row`; `index` counts the run's samples."""
    return Sample(row, 0, 0, index, 0.0, 0, 1.0, 0.0, 1.0)
