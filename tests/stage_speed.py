"""`python -m tests.stage_speed`: tokens per second of a model on one device and in stages, and how
much of the time the stages work at once.

The engines are measured in turns, so that what else the machine does falls on
all of them. Each device gets one thread of Mesa's software driver.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

from app.tale import model_dir
from gpu import LoadOptions
from gpu.engine.engine import Engine
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.step import Span, StepResult
from tests.gpu.runners.remote_hosts import ProcessHosts

STAGES, STREAMS = (1, 2, 3), (1, 2, 4, 8)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each text")
    parser.add_argument("--turns", type=int, default=5, help="times that each engine is measured")
    parser.add_argument(
        "--processes", action="store_true", help="run each stage in a process of its own"
    )
    args = parser.parse_args(argv)
    os.environ["LP_NUM_THREADS"] = "1"
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        engines = {
            n: Watched(stack.enter_context(closing(_load(n, args.processes)))) for n in STAGES
        }
        for turn in range(args.turns + 1):
            for n, engine in engines.items():
                for streams in STREAMS:
                    result = engine.measure(streams, args.tokens)
                    if turn:  # the first one compiles kernels
                        found.setdefault((n, streams), []).append(result)
    print(f"{args.tokens} tokens of each text, medians of {args.turns} turns")
    for (n, streams), results in found.items():
        rate, at_once = (statistics.median(column) for column in zip(*results, strict=True))
        print(f"{n} stages, {streams} texts: {rate:6.1f} tok/s, at once {at_once:.0%} of the time")


def _load(n_stages: int, in_processes: bool) -> Engine:
    options = LoadOptions(
        dtype="f32", context=512, slots=max(STREAMS), pipeline_parallel_size=n_stages
    )
    hosts = ProcessHosts() if in_processes and n_stages > 1 else None
    return Engine.load(model_dir(), options, stage_hosts=hosts)


class Watched:
    """An engine whose steps are noted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._spans: list[Span] = []
        runner = engine._thread.runner
        collect = runner.collect

        def noted() -> StepResult:
            result = collect()
            self._spans += result.stage_spans
            return result

        runner.collect = noted  # type: ignore[method-assign]

    def measure(self, n_streams: int, n_tokens: int) -> tuple[float, float]:
        """Return tokens per second of all texts, and the share of the time in which two stages or
        more had a step."""
        self._spans.clear()
        params = SamplingParams(max_tokens=n_tokens, ignore_eos=True, seed=1)
        began = time.perf_counter()
        runs = [self._engine.submit(Request([5 + i, 9], params)) for i in range(n_streams)]
        for run in runs:
            assert len(list(run)) == n_tokens
        seconds = time.perf_counter() - began
        return n_streams * n_tokens / seconds, _at_once_ms(self._spans) / (1e3 * seconds)


def _at_once_ms(spans: Sequence[Span]) -> float:
    """Return the milliseconds that are in two spans or more."""
    edges = sorted([(s.began, 1) for s in spans] + [(s.ended, -1) for s in spans])
    total, n, before = 0.0, 0, 0.0
    for at, change in edges:
        total += at - before if n > 1 else 0.0
        n, before = n + change, at
    return total


if __name__ == "__main__":
    main()
